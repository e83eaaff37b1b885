"""Before a create, what can't stop it is not waited for."""

from __future__ import annotations

from functools import partial

import pytest

from troupe_tasks import config
from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.doctor.run import CHECKS, Entry, run_doctor
from troupe_tasks.errors import NotReady
from troupe_tasks.host import apt
from troupe_tasks.operations import readiness
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.sbx import calls


def test_a_create_on_the_capsule_does_not_wait_for_a_guest_on_kvm(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(
        _machine: Machine, *, driver: str, checks: tuple[Entry, ...], patience: int
    ) -> tuple[Finding, ...]:
        asked.extend(entry.requirement for entry in checks)
        assert patience > 1, "a busy machine is not one that is not ready"
        return ()

    monkeypatch.setattr(readiness, "run_doctor", run)
    readiness.refuse_unready(House(Paths.from_env()))
    assert "KVM" not in asked
    assert {"CPU", "capsule programs", "user namespaces"} <= set(asked)


def test_the_doctor_of_a_machine_whose_driver_is_sbx_wants_an_sbx(monkeypatch: pytest.MonkeyPatch) -> None:
    sbx_alone = tuple(entry for entry in CHECKS if entry.requirement == "sbx")
    monkeypatch.setattr(readiness, "run_doctor", partial(run_doctor, checks=sbx_alone))
    monkeypatch.setattr(calls, "find", lambda: None)
    house = House(Paths.from_env())
    assert readiness.examine(house) == ()
    config.put(house.paths, "driver", "sbx")
    (found,) = readiness.examine(house)
    assert (found.verdict, found.detail) == (Level.ACTION, "not installed")


def test_an_agent_of_sbx_waits_for_no_gvisor_and_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(_machine: Machine, *, checks: tuple[Entry, ...], **_how: object) -> tuple[Finding, ...]:
        asked.extend(entry.requirement for entry in checks)
        return ()

    monkeypatch.setattr(readiness, "run_doctor", run)
    monkeypatch.setattr(apt, "ensure_runsc", lambda *_: asked.append("fetched"))
    house = House(Paths.from_env(), wanted="sbx")
    readiness.bring_programs(house, asked.append)
    readiness.refuse_unready(house)
    assert not {"fetched", "gVisor"} & set(asked)
    assert {"KVM", "init", "sbx daemon unit"} <= set(asked)
    readiness.bring_programs(House(Paths.from_env(), wanted="capsule"), asked.append)
    assert "fetched" in asked


def test_what_stands_in_the_way_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding(
        kind=Kind.SOFTWARE, requirement="init", verdict=Level.ACTION, detail="none", todo="Get one."
    )
    monkeypatch.setattr(readiness, "run_doctor", lambda *_facts, **_options: (found,))
    with pytest.raises(NotReady, match="init: none") as caught:
        readiness.refuse_unready(House(Paths.from_env()))
    assert caught.value.hint == "Get one."
