"""What an agent of sbx's takes of the machine, and what it finds there."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks import budget, sizes
from troupe_tasks import record as records
from troupe_tasks.budget import Resource, Verdict
from troupe_tasks.errors import Refused, UsageError
from troupe_tasks.host import memory
from troupe_tasks.kits import local
from troupe_tasks.operations import room
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Listing
from troupe_tasks.sandbox.sbx import environment

GIB = 1024
SIZES = Sizes(cpus=1, memory_mib=GIB, storage_mib=10 * GIB)
WITH_DOCKER = SIZES.model_copy(update={"docker_mib": 2 * GIB})
MAX = sizes.Max.MAX
NOTHING = Listing(complete=True, sandboxes=())


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    """Return a house of a machine with an agent of each driver, whose sandboxes are still to be made."""
    house = House(Paths.from_env())
    for driver in drivers.NAMES:
        recorded(house, f"an-{driver}", driver)
    monkeypatch.setattr(House, "listings", lambda _self: dict.fromkeys(drivers.NAMES, NOTHING))
    monkeypatch.setattr(drivers, "present", lambda _name: True)
    monkeypatch.setattr(
        room, "free_mib", lambda place: 200 * GIB if place == environment.disks() else 100 * GIB
    )
    monkeypatch.setattr(room, "total_mib", lambda: 64 * GIB)
    monkeypatch.setattr(room, "usable_threads", lambda: 8)
    monkeypatch.setattr(room, "resident_mib", lambda *_words: 300)
    return house


def recorded(house: House, one: str, driver: str) -> None:
    records.save(house.paths, Record(
        id=one, name=one, kit=KitPin(type="hermes", version="0.1.0"), driver=driver, isolation="kvm", wanted="down",
        rehearsal=True, key_tier="none", sizes=WITH_DOCKER if driver == "sbx" else SIZES, created_at="now",
    ))  # fmt: skip


def disk(verdict: Verdict) -> tuple[int, int]:
    found = next(line for line in verdict.lines if line.resource is Resource.DISK)
    return found.needed, found.available


def test_dockers_own_disk_is_counted_with_each_sandbox_of_sbx(house: House) -> None:
    mine = room.verdict(house, "an-sbx", WITH_DOCKER)
    assert disk(mine) == (12 * GIB, 180 * GIB - 10 * GIB)
    assert disk(room.verdict(house, "an-sbx", WITH_DOCKER, grown_mib=5 * GIB))[0] == 7 * GIB
    others = room.verdict(house, "an-capsule", SIZES)
    assert disk(others) == (10 * GIB, 90 * GIB - 12 * GIB)
    second = room.verdict_beside(house, "an-sbx", WITH_DOCKER)
    assert disk(second) == (12 * GIB, 180 * GIB - 10 * GIB - 12 * GIB)


@pytest.mark.parametrize(
    ("asked", "disks"),
    [
        (sizes.Wanted(1, GIB, MAX, 2 * GIB), (168 * GIB, 2 * GIB)),
        (sizes.Wanted(1, GIB, 20 * GIB, MAX), (20 * GIB, 150 * GIB)),
        (sizes.Wanted(1, GIB, MAX, MAX, ratio=(12, 5)), (120 * GIB, 50 * GIB)),
    ],
)
def test_max_of_the_two_disks_is_what_fits(house: House, asked: sizes.Wanted, disks: tuple[int, int]) -> None:
    most = room.settled(house, "an-sbx", asked)
    assert (most.storage_mib, most.docker_mib) == disks
    found = room.verdict(house, "an-sbx", most)
    assert found.fits
    assert disk(found)[0] == disk(found)[1]


def test_sizes_that_sbx_does_not_make_are_told_before_anything_is_done(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "total_mib", lambda: 64 * GIB)
    assert room.settled(house, "an-sbx", sizes.Wanted(1, MAX, GIB, 512)).memory_mib == 48 * GIB
    for asked, told in (
        (sizes.Wanted(1, 48 * GIB + 1, GIB, 512), "three quarters"),
        (sizes.Wanted(1, 511, GIB, 512), "512 MiB of memory"),
        (sizes.Wanted(1, GIB, GIB, 511), "no Docker disk of less"),
    ):
        with pytest.raises(Refused, match=told):
            room.settled(house, "an-sbx", asked)
    assert room.settled(house, "an-capsule", sizes.Wanted(1, 60 * GIB, GIB)).memory_mib == 60 * GIB


def test_a_disk_for_docker_is_asked_of_a_driver_that_makes_one_alone() -> None:
    kit = local.find("hermes")
    typed = sizes.typed(cpu="", memory="4", storage="", docker="30")
    found = room.wanted("sbx", kit, kit.sizes, typed)
    assert (found.memory_mib, found.storage_mib, found.docker_mib) == (4 * GIB, 10 * GIB, 30 * GIB)
    assert found.ratio == (10 * GIB, 512)
    assert room.named(found)["docker_mib"] == str(30 * GIB)
    with pytest.raises(UsageError, match="no disk for Docker"):
        room.wanted("capsule", kit, kit.sizes, typed)
    plain = room.wanted("capsule", kit, kit.sizes, {})
    assert plain.docker_mib == 0
    assert set(room.named(plain)) == {"cpus", "memory_mib", "storage_mib"}


def test_disks_of_another_filesystem_take_nothing_of_this_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "device", lambda place: 1 if place == environment.disks() else 2)
    assert disk(room.verdict(house, "an-sbx", SIZES))[1] == 180 * GIB
    recorded(house, "another", "sbx")
    assert disk(room.verdict(house, "an-sbx", SIZES))[1] == 168 * GIB
    assert disk(room.verdict(house, "an-capsule", SIZES))[1] == 90 * GIB


def test_the_sandbox_daemon_is_counted_where_there_may_be_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 64 * GIB - budget.RESERVE_MIB
    for driver in drivers.NAMES:
        memory = next(
            line
            for line in room.verdict(house, f"an-{driver}", SIZES).lines
            if line.resource is Resource.MEMORY
        )
        assert memory.available == left - 300
        assert "300 MiB of the sandbox daemon" in memory.detail
    monkeypatch.setattr(drivers, "present", lambda name: name != "sbx")
    assert room.host(house, "capsule").daemon_mib == 0


def test_the_disks_of_sbx_are_where_it_keeps_its_state() -> None:
    assert environment.disks({"HOME": "/home/jo"}) == Path("/home/jo/.local/state/sandboxes")
    assert environment.disks({"HOME": "/home/jo", "XDG_STATE_HOME": "/srv"}) == Path("/srv/sandboxes")
    assert environment.disks({"HOME": "/home/jo", "XDG_STATE_HOME": "srv"}) == Path(
        "/home/jo/.local/state/sandboxes"
    )
