"""What a machine has left, and what is said when that is not enough."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.budget import OVERHEAD_MIB, Host, Need, Resource, Running, Verdict, check, room
from troupe_tasks.errors import OverBudget
from troupe_tasks.sizes import Room

GIB = 1024
HOST = Host(cpu_threads=4, memory_mib=16 * GIB, disk_free_mib=100 * GIB)
NEED = Need(driver="capsule", cpus=2, memory_mib=2 * GIB, disk_growth_mib=10 * GIB)


def other(**changes: object) -> Running:
    base = Running("jane", "Jane", "capsule", up=True, cpus=1, memory_mib=GIB, disk_growth_mib=5 * GIB)
    return replace(base, **changes)  # type: ignore[arg-type]


def line(verdict: Verdict, resource: Resource) -> tuple[int, int]:
    found = next(item for item in verdict.lines if item.resource is resource)
    return found.needed, found.available


drivers = st.sampled_from(sorted(OVERHEAD_MIB))
hosts = st.builds(
    Host, st.integers(1, 512), st.integers(1, 1 << 22), st.integers(0, 1 << 26), st.integers(0, 4096)
)
needs = st.builds(Need, drivers, st.integers(1, 64), st.integers(1, 1 << 20), st.integers(0, 1 << 22))
sized = st.builds(
    Running, st.none() | st.just("a"), st.just("A"), drivers, st.booleans(), st.integers(1, 64),
    st.integers(1, 1 << 20), st.integers(0, 1 << 20),
)  # fmt: skip


def test_an_empty_machine_keeps_its_reserves() -> None:
    verdict = check(HOST, NEED, others=[])
    assert line(verdict, Resource.MEMORY) == (2 * GIB + 128, 14 * GIB)
    assert line(verdict, Resource.CPUS) == (2, 6)
    assert line(verdict, Resource.DISK) == (10 * GIB, 90 * GIB)
    assert verdict.fits


def test_the_sandbox_daemon_is_counted() -> None:
    assert line(check(replace(HOST, daemon_mib=300), NEED, others=[]), Resource.MEMORY)[1] == 14 * GIB - 300


@pytest.mark.parametrize(("driver", "around"), [("capsule", 128), ("vm", 1280), ("sbx", 1280)])
def test_each_driver_has_its_own_overhead(driver: str, around: int) -> None:
    verdict = check(HOST, replace(NEED, driver=driver), others=[other(driver=driver)])
    assert line(verdict, Resource.MEMORY) == (2 * GIB + around, 14 * GIB - GIB - around)


def test_a_stopped_sandbox_counts_for_its_disk_alone() -> None:
    verdict = check(HOST, NEED, others=[other(up=False)])
    assert line(verdict, Resource.MEMORY)[1] == 14 * GIB
    assert line(verdict, Resource.CPUS)[1] == 6
    assert line(verdict, Resource.DISK)[1] == 85 * GIB


def test_a_sandbox_that_is_not_troupes_counts_too() -> None:
    assert line(check(HOST, NEED, others=[other(id=None)]), Resource.CPUS)[1] == 5


def test_over_budget_says_by_how_much_for_each_resource() -> None:
    verdict = check(HOST, Need("capsule", 4, 15 * GIB, 95 * GIB), others=[other()])
    assert [(short.resource, short.over) for short in verdict.over] == [
        (Resource.MEMORY, 15 * GIB + 128 - 13 * GIB + 128),
        (Resource.DISK, 10 * GIB),
    ]
    assert not verdict.fits
    assert not verdict.refusals
    with pytest.raises(
        OverBudget, match=r"memory: needs 15488 MiB.*over by 2304 MiB; disk: .*over by 10 GiB"
    ):
        verdict.raise_over()
    verdict.raise_refusals()


def test_a_line_shows_figures_that_add_up() -> None:
    shown = [item.show() for item in check(Host(4, 24105, 80307), NEED, others=[other(), other()]).lines]
    memory, cpus, disk = shown
    assert memory == (
        "memory: needs 2176 MiB, 19753 MiB available (24105 MiB in all - 2 GiB reserve - 2304 MiB of 2 other"
        " sandboxes; the need is 2 GiB + 128 MiB around it): fits"
    )
    assert cpus == "cpus: needs 2, 4 available (1.5 x 4 threads - 2 of 2 other sandboxes): fits"
    assert disk == (
        "disk: needs 10 GiB, 62036 MiB available (80307 MiB free - 8031 MiB reserve - 10 GiB that the other"
        " sandboxes' disks may still grow): fits"
    )


def test_more_than_the_machine_has_is_refused_outright() -> None:
    verdict = check(HOST, Need("capsule", 5, 17 * GIB, 1), others=[])
    assert len(verdict.refusals) == 2
    with pytest.raises(OverBudget, match="more than this machine has") as caught:
        verdict.raise_refusals()
    assert "--force does not" in caught.value.hint


@pytest.mark.parametrize("unsized", [{"cpus": None}, {"memory_mib": None}])
def test_a_running_sandbox_of_unknown_size_is_refused(unsized: dict[str, None]) -> None:
    assert "Jane does not report its size" in check(HOST, NEED, others=[other(**unsized)]).refusals[0]
    assert check(HOST, NEED, others=[other(up=False, **unsized)]).fits


@pytest.mark.parametrize(
    ("cpus", "unsized", "todo"),
    [
        (99, False, "choose smaller sizes"),
        (1, True, "stop Jane"),
        (99, True, "choose smaller sizes and stop Jane"),
    ],
)
def test_a_refusal_hints_at_what_would_lift_it(cpus: int, unsized: bool, todo: str) -> None:
    others = [other(cpus=None)] if unsized else [other()]
    with pytest.raises(OverBudget) as refused:
        check(HOST, replace(NEED, cpus=cpus), others=others).raise_refusals()
    assert refused.value.hint == f"--force does not pass this: {todo}."


def test_an_unknown_disk_is_noted() -> None:
    verdict = check(HOST, NEED, others=[other(disk_growth_mib=None)])
    assert verdict.fits
    assert verdict.notes == ("1 other sandbox did not report its disk size, which was not counted",)


def test_an_unreadable_figure_is_noted_and_not_checked() -> None:
    verdict = check(Host(None, None, None), Need("vm", 999, 1 << 30, 1 << 30), others=[other()])
    assert verdict.fits
    assert verdict.lines == ()
    assert len(verdict.notes) == 3
    assert room(Host(None, None, None), driver="vm", others=[]) == Room(None, None, None)


@given(hosts, needs, st.lists(sized, max_size=8), sized)
def test_another_sandbox_never_raises_what_is_available(
    host: Host, need: Need, others: list[Running], extra: Running
) -> None:
    before, after = check(host, need, others=others), check(host, need, others=[*others, extra])
    assert all(b.available >= a.available for b, a in zip(before.lines, after.lines, strict=True))
    assert before.fits or not after.fits


@given(
    hosts,
    needs,
    st.lists(sized, max_size=8).flatmap(lambda many: st.tuples(st.just(many), st.permutations(many))),
)
def test_the_order_of_sandboxes_does_not_matter(
    host: Host, need: Need, pair: tuple[list[Running], list[Running]]
) -> None:
    assert check(host, need, others=pair[0]) == check(host, need, others=pair[1])


@given(hosts, drivers, st.lists(sized, max_size=4))
def test_max_always_fits_and_one_more_never_does(host: Host, driver: str, others: list[Running]) -> None:
    most = room(host, driver=driver, others=others)
    assert most.cpus is not None
    assert most.memory_mib is not None
    assert most.disk_mib is not None
    if min(most.cpus, most.memory_mib) < 1:
        return
    fitting = Need(driver, most.cpus, most.memory_mib, most.disk_mib)
    disk_fits = line(check(host, fitting, others=others), Resource.DISK)[1] >= 0
    assert check(host, fitting, others=others).fits is disk_fits
    for grown in (
        replace(fitting, cpus=fitting.cpus + 1),
        replace(fitting, memory_mib=fitting.memory_mib + 1),
        replace(fitting, disk_growth_mib=fitting.disk_growth_mib + 1),
    ):
        assert not check(host, grown, others=others).fits


@given(hosts, needs, st.lists(sized, max_size=4))
def test_what_fits_can_be_added_and_the_rest_adds_up(host: Host, need: Need, others: list[Running]) -> None:
    verdict = check(host, need, others=others)
    added = Running("n", "N", need.driver, True, need.cpus, need.memory_mib, need.disk_growth_mib)
    after = check(host, need, others=[*others, added])
    for before, now in zip(verdict.lines, after.lines, strict=True):
        assert before.available - now.available == before.needed


@given(hosts, needs, st.lists(sized, max_size=4))
def test_a_bigger_need_never_fits_where_a_smaller_did_not(
    host: Host, need: Need, others: list[Running]
) -> None:
    bigger = Need(need.driver, need.cpus + 1, need.memory_mib + 1, need.disk_growth_mib + 1)
    assert check(host, need, others=others).fits or not check(host, bigger, others=others).fits
