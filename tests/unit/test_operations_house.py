"""Which driver a new agent gets, and that a runtime that is ill hides no other's sandboxes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from troupe_tasks import config
from troupe_tasks import record as records
from troupe_tasks.errors import DaemonFailed, NotReady, UsageError
from troupe_tasks.operations import inventory, outfit, room
from troupe_tasks.operations.delete import delete
from troupe_tasks.operations.house import House, Unseen
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Isolation, LimitReport, Listing, SandboxSpec
from troupe_tasks.sandbox.protocol import Sizes as Sandboxed
from troupe_tasks.sandbox.sbx import saved

HERE = Listing(complete=True, sandboxes=())


class Driver:
    """A driver that is ready or not, whose runtime answers or not."""

    def __init__(self, name: str, *, ready: bool = True, answers: bool = True) -> None:
        self.name, self.ready, self.answers = name, ready, answers
        self.removed: list[str] = []

    def isolation(self) -> Isolation:
        if not self.ready:
            raise NotReady("not here")
        return Isolation.KVM

    def limits(self) -> tuple[LimitReport, ...]:
        return ()

    def list(self) -> Listing:
        if not self.answers:
            raise DaemonFailed("it hangs")
        return HERE

    def remove(self, sandbox_id: str) -> None:
        self.removed.append(sandbox_id)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Driver]:
    """Return the drivers that the test may change; sbx is installed."""
    found = {name: Driver(name) for name in drivers.NAMES}

    def opened(name: str, paths: Paths, **_more: Any) -> Driver:
        if name not in found:
            raise UsageError("no such driver")
        return found[name]

    monkeypatch.setattr(drivers, "open_driver", opened)
    monkeypatch.setattr(drivers, "present", lambda name: name in found)
    return found


def test_the_strongest_that_is_ready_is_chosen_unless_one_is_set_or_asked_for(
    made: dict[str, Driver],
) -> None:
    paths = Paths.from_env()
    assert House(paths).chosen == "sbx"
    made["sbx"].ready = False
    assert House(paths).chosen == "capsule"
    made["capsule"].ready = False
    assert House(paths).chosen == "capsule"
    config.put(paths, "driver", "sbx")
    assert House(paths).chosen == "sbx"
    assert House(paths, wanted="capsule").chosen == "capsule"
    assert House(paths, wanted="capsule").driver().name == "capsule"
    assert House(paths).driver("capsule").name == "capsule"


def test_one_that_does_not_say_whether_it_is_ready_is_passed_over(
    made: dict[str, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hangs() -> Isolation:
        release.wait(30)
        return Isolation.KVM

    monkeypatch.setattr(made["sbx"], "isolation", hangs)
    began = time.monotonic()
    assert House(Paths.from_env()).at_a_glance == "capsule"
    assert time.monotonic() - began < 5
    release.set()


def test_the_doctor_forgets_no_sbx_that_agents_live_in_ready_or_not(made: dict[str, Driver]) -> None:
    house = House(Paths.from_env())
    made["sbx"].ready = False
    recorded(house, "caged", "capsule")
    assert house.at_a_glance == "capsule"
    recorded(house, "docked", "sbx")
    assert house.at_a_glance == "sbx"
    config.put(house.paths, "driver", "capsule")
    assert house.at_a_glance == "capsule"
    config.put(house.paths, "driver", "sbx")
    house.paths.record("docked").unlink()
    assert House(Paths.from_env()).at_a_glance == "sbx"


def test_a_record_that_does_not_read_stops_no_doctor(made: dict[str, Driver]) -> None:
    house = House(Paths.from_env())
    recorded(house, "caged", "capsule")
    house.paths.record("caged").write_text("{")
    made["sbx"].ready = False
    assert house.at_a_glance == "capsule"


def test_a_runtime_that_does_not_answer_hides_no_other(made: dict[str, Driver]) -> None:
    made["sbx"].answers = False
    found = House(Paths.from_env()).listings()
    assert isinstance(found["sbx"], Unseen)
    assert str(found["sbx"].error) == "it hangs"
    assert found["capsule"] == HERE


def recorded(house: House, one: str, driver: str) -> Record:
    found = Record(
        id=one, name=one, kit=KitPin(type="hermes", version="0.1.0"), driver=driver, isolation="kvm", wanted="up",
        rehearsal=True, key_tier="none", sizes=Sizes(cpus=1, memory_mib=512, storage_mib=512), created_at="now",
    )  # fmt: skip
    records.save(house.paths, found)
    return found


def test_agents_of_another_runtime_that_does_not_answer_are_counted_by_their_records(
    made: dict[str, Driver],
) -> None:
    house = House(Paths.from_env())
    recorded(house, "docked", "sbx")
    recorded(house, "caged", "capsule")
    made["sbx"].answers = False
    (other,) = room.others(house, "caged")
    assert (other.id, other.memory_mib, other.up) == ("docked", 512, True)
    with pytest.raises(DaemonFailed, match="it hangs"):
        room.others(house, "docked")


def test_the_status_of_an_agent_whose_runtime_does_not_answer_says_so(
    made: dict[str, Driver],
) -> None:
    house = House(Paths.from_env())
    recorded(house, "docked", "sbx")
    made["sbx"].answers = False
    found = inventory.full(house, "docked")
    assert (found.agent.state, found.agent.why) == ("unknown", "it hangs")
    assert found.budget == ("not known: the runtime of sbx does not answer",)
    assert found.disk_used_mib is None


def test_an_agents_sandboxes_are_made_with_the_isolation_of_its_record(
    made: dict[str, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def opened(name: str, paths: Paths, *, isolation: Isolation | None = None) -> Maker:
        asked.append((name, isolation))
        return Maker()

    monkeypatch.setattr(drivers, "open_driver", opened)
    house = House(Paths.from_env())
    record = recorded(house, "caged", "capsule").model_copy(update={"isolation": "namespaces"})
    wanted = SandboxSpec(
        id="caged--1",
        sizes=Sandboxed(cpus=1, memory_mib=512, storage_mib=512),
        image=Path("/i"),
        egress=Path("/e"),
    )
    assert outfit.make(house, record, wanted) == "identity"
    assert asked == [("capsule", Isolation.NAMESPACES)]


class Maker:
    """A driver that makes sandboxes."""

    def create(self, _wanted: SandboxSpec) -> str:
        return "identity"


def test_a_driver_that_is_gone_is_asked_while_an_agent_has_it(
    made: dict[str, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "present", lambda name: name == "capsule")
    house = House(Paths.from_env())
    assert [driver.name for driver in house.drivers()] == ["capsule"]
    recorded(house, "jane", "sbx")
    assert [driver.name for driver in house.drivers()] == ["sbx", "capsule"]


def test_an_agent_of_which_no_record_reads_is_deleted_whatever_ails_a_driver_that_never_had_it(
    made: dict[str, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(Paths.from_env())
    recorded(house, "jane", "capsule")
    house.paths.record("jane").write_bytes(b"")
    made["sbx"].answers = False
    saved.place(house.paths, "another").mkdir(parents=True)
    delete(house, "jane", told=lambda _line: None)
    assert not house.paths.agent("jane").exists()
    assert made["capsule"].removed == ["jane", "jane--1"]
    recorded(house, "jane", "capsule")
    house.paths.record("jane").write_bytes(b"")
    saved.place(house.paths, "jane--1").mkdir()
    monkeypatch.setattr(drivers, "present", lambda name: name == "capsule")
    with pytest.raises(DaemonFailed, match="it hangs"):
        delete(house, "jane", told=lambda _line: None)
    made["sbx"].answers = True
    delete(house, "jane", told=lambda _line: None)
    assert made["sbx"].removed == ["jane", "jane--1"]
