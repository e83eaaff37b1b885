"""What sizes are understood, and what `max` comes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.errors import NotReady, OverBudget, UsageError
from troupe_tasks.sizes import (
    Max,
    Room,
    Settled,
    Wanted,
    parse_cpus,
    parse_mib,
    settle,
    show_mib,
)

GIB = 1024
WIDE = Room(cpus=8, memory_mib=16 * GIB, disk_mib=100 * GIB)


@pytest.mark.parametrize(
    ("text", "cpus"), [("1", 1), (" 8 ", 8), ("128", 128), ("max", Max.MAX), ("MAX", Max.MAX)]
)
def test_cpus_are_whole_numbers_or_max(text: str, cpus: int | Max) -> None:
    assert parse_cpus(text) == cpus


BAD = [
    "", " ", "0", "00", "-1", "+1", "nan", "NaN", "inf", "-inf", "1e3", "0x10", "1_000", "\u0661", "1,5",
    "8 GB x", "9" * 30, "maximum", "1;ls", "\x1b[31m8", "8\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", [*BAD, "1.0", "1.5", "2GiB", "999999"])
def test_other_cpus_are_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(UsageError, match="--cpu can't take") as caught:
        parse_cpus(text)
    assert "max" in caught.value.hint
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "mib"),
    [("8", 8192), ("1.5", 1536), ("8GiB", 8192), ("8gib", 8192), ("0.1", 103), ("0.5GiB", 512),
     ("512MiB", 512), ("1MiB", 1), ("max", Max.MAX), ("Max", Max.MAX), (" 2 ", 2048)],
)  # fmt: skip
def test_sizes_are_gib_or_carry_their_unit(text: str, mib: int | Max) -> None:
    assert parse_mib(text, flag="--memory") == mib


@pytest.mark.parametrize(
    "text",
    [
        *BAD,
        "0.0",
        "0GiB",
        "0MiB",
        "1.25",
        ".5",
        "5.",
        "8GB",
        "8G",
        "8M",
        "8TiB",
        "1.5MiB",
        "8 GiB",
        "99999999",
    ],
)
def test_other_sizes_are_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(UsageError, match="--storage can't take") as caught:
        parse_mib(text, flag="--storage")
    assert "512MiB" in caught.value.hint
    assert len(str(caught.value)) < 120


@given(st.text(max_size=30))
def test_any_text_is_a_size_above_zero_or_a_usage_error(text: str) -> None:
    for parse in (parse_cpus, lambda word: parse_mib(word, flag="--memory")):
        try:
            amount = parse(text)
        except UsageError:
            continue
        assert isinstance(amount, Max) or amount > 0


@pytest.mark.parametrize(
    ("mib", "shown"),
    [(2048, "2 GiB"), (1536, "1.5 GiB"), (24105, "24105 MiB"), (128, "128 MiB"), (0, "0 MiB")],
)
def test_a_size_is_shown_exactly(mib: int, shown: str) -> None:
    assert show_mib(mib) == shown


@given(st.integers(1, 1 << 30))
def test_a_shown_size_reads_back_as_itself(mib: int) -> None:
    assert parse_mib(show_mib(mib).replace(" ", ""), flag="--memory") == mib


def test_numbers_pass_through_unchanged() -> None:
    assert settle(Wanted(2, 512, 1024), room=Room(None, None, None)) == Settled(2, 512, 1024)


def test_a_disk_beside_takes_its_part_of_max() -> None:
    assert settle(Wanted(1, 1, Max.MAX, 20 * GIB), room=WIDE).storage_mib == 80 * GIB
    assert settle(Wanted(1, 1, 30 * GIB, Max.MAX), room=WIDE).docker_mib == 70 * GIB
    both = settle(Wanted(1, 1, Max.MAX, Max.MAX, ratio=(3, 1)), room=WIDE)
    assert (both.storage_mib, both.docker_mib) == (75 * GIB, 25 * GIB)


@given(st.integers(0, 1 << 24), st.integers(1, 1 << 24), st.integers(1, 1 << 24))
def test_two_max_share_all_there_is_or_are_refused(most: int, root: int, docker: int) -> None:
    room = Room(cpus=1, memory_mib=GIB, disk_mib=most)
    try:
        found = settle(Wanted(1, 1, Max.MAX, Max.MAX, ratio=(root, docker)), room=room)
    except OverBudget:
        assert min(most * root // (root + docker), most * docker // (root + docker)) < 10 * GIB
    else:
        assert found.storage_mib + found.docker_mib == most
        assert min(found.storage_mib, found.docker_mib) >= 10 * GIB


def test_max_is_all_the_room() -> None:
    assert settle(Wanted(Max.MAX, Max.MAX, Max.MAX), room=WIDE) == Settled(8, 16 * GIB, 100 * GIB)


@pytest.mark.parametrize(
    ("wanted", "room", "flag"),
    [
        (Wanted(Max.MAX, 1, 1), Room(0, 1, 1), "--cpu"),
        (Wanted(1, Max.MAX, 1), Room(1, GIB - 1, 1), "--memory"),
        (Wanted(1, 1, Max.MAX), Room(1, 1, 10 * GIB - 1), "--storage"),
        (Wanted(1, 1, Max.MAX, 95 * GIB), WIDE, "--storage"),
        (Wanted(1, 1, 95 * GIB, Max.MAX), WIDE, "--docker"),
        (Wanted(1, 1, Max.MAX, Max.MAX, ratio=(20, 1)), WIDE, "--docker"),
    ],
)
def test_a_max_under_the_least_is_refused(wanted: Wanted, room: Room, flag: str) -> None:
    with pytest.raises(OverBudget, match=f"{flag} max would be"):
        settle(wanted, room=room)


@pytest.mark.parametrize(
    "wanted",
    [Wanted(Max.MAX, 1, 1), Wanted(1, Max.MAX, 1), Wanted(1, 1, Max.MAX), Wanted(1, 1, 1, Max.MAX)],
)
def test_a_max_of_an_unreadable_figure_asks_for_a_number(wanted: Wanted) -> None:
    with pytest.raises(NotReady, match="can't be read"):
        settle(wanted, room=Room(None, None, None))
