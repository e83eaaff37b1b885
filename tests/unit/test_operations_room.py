"""What an agent of sbx's takes of the machine, and what it finds there."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks import budget, sizes
from troupe_tasks import record as records
from troupe_tasks.budget import Resource, Verdict
from troupe_tasks.operations import room
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Listing
from troupe_tasks.sandbox.sbx import environment

GIB = 1024
SIZES = Sizes(cpus=1, memory_mib=GIB, storage_mib=10 * GIB)
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
        rehearsal=True, key_tier="none", sizes=SIZES, created_at="now",
    ))  # fmt: skip


def disk(verdict: Verdict) -> tuple[int, int]:
    found = next(line for line in verdict.lines if line.resource is Resource.DISK)
    return found.needed, found.available


def test_dockers_own_disk_is_counted_with_each_sandbox_of_sbx(house: House) -> None:
    beside = environment.DOCKER_MIB
    assert beside > 0
    mine = room.verdict(house, "an-sbx", SIZES)
    assert disk(mine) == (10 * GIB + beside, 180 * GIB - 10 * GIB)
    others = room.verdict(house, "an-capsule", SIZES)
    assert disk(others) == (10 * GIB, 90 * GIB - 10 * GIB - beside)
    second = room.verdict_beside(house, "an-sbx", SIZES)
    assert disk(second) == (10 * GIB + beside, 180 * GIB - 2 * 10 * GIB - beside)
    most = room.settled(house, "an-sbx", sizes.Wanted(cpus=1, memory_mib=GIB, storage_mib=sizes.Max.MAX))
    assert most.storage_mib == 170 * GIB - beside
    assert room.verdict(house, "an-sbx", most).fits


def test_disks_of_another_filesystem_take_nothing_of_this_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "device", lambda place: 1 if place == environment.disks() else 2)
    assert disk(room.verdict(house, "an-sbx", SIZES))[1] == 180 * GIB
    recorded(house, "another", "sbx")
    assert disk(room.verdict(house, "an-sbx", SIZES))[1] == 170 * GIB - environment.DOCKER_MIB
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
