"""Before a create, what can't stop it is not waited for."""

from __future__ import annotations

import pytest

from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.doctor.run import Entry
from troupe_tasks.errors import NotReady
from troupe_tasks.operations import readiness
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths


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


def test_what_stands_in_the_way_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding(
        kind=Kind.SOFTWARE, requirement="init", verdict=Level.ACTION, detail="none", todo="Get one."
    )
    monkeypatch.setattr(readiness, "run_doctor", lambda *_facts, **_options: (found,))
    with pytest.raises(NotReady, match="init: none") as caught:
        readiness.refuse_unready(House(Paths.from_env()))
    assert caught.value.hint == "Get one."
