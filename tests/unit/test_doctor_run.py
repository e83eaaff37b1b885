"""Checks run side by side: what hangs or breaks costs itself alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.doctor.run import CHECKS, Check, Entry, run_doctor
from troupe_tasks.doctor.show import lines, stops
from troupe_tasks.paths import Paths


@pytest.fixture
def machine() -> Machine:
    return Machine.here(Paths.from_env())


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def says(name: str, verdict: Level = Level.OK, todo: str = "") -> Check:
    def check(machine: Machine) -> Finding:
        return Finding(
            kind=Kind.SOFTWARE, requirement=name, verdict=verdict, detail=machine.driver, todo=todo
        )

    return check


def entry(name: str, check: Check, silence: Level = Level.NOTE) -> Entry:
    return Entry(Kind.SOFTWARE, name, check, silence, deadline_s=0.2)


def test_a_hanging_check_costs_its_own_deadline_only(machine: Machine, release: threading.Event) -> None:
    def hangs(_: Machine) -> Finding:
        release.wait()
        raise AssertionError

    began = monotonic()
    hanging = [entry(name, hangs) for name in ("three", "four")]
    checks = (entry("one", hangs, Level.ACTION), entry("two", says("two")), *hanging)
    found = run_doctor(machine, driver="vm", checks=checks)
    assert monotonic() - began < 1.0
    assert [finding.requirement for finding in found] == ["one", "two", "three", "four"]
    assert [finding.verdict for finding in found] == [Level.ACTION, Level.OK, Level.NOTE, Level.NOTE]
    assert found[0].detail == "did not answer in 0.2 s"
    assert found[1].detail == "vm"


def test_patience_waits_longer_for_a_slow_check(machine: Machine, release: threading.Event) -> None:
    def slow(_: Machine) -> Finding:
        release.wait(timeout=0.5)
        return says("one")(machine)

    checks = (entry("one", slow, Level.ACTION),)
    (impatient,) = run_doctor(machine, driver="capsule", checks=checks)
    (patient,) = run_doctor(machine, driver="capsule", checks=checks, patience=50)
    assert (impatient.verdict, patient.verdict) == (Level.ACTION, Level.OK)


def test_a_broken_check_is_a_finding(machine: Machine) -> None:
    def breaks(_: Machine) -> Finding:
        raise RuntimeError("odd \x1b[31m")

    (found,) = run_doctor(machine, driver="capsule", checks=(entry("one", breaks, Level.ACTION),))
    assert found.verdict is Level.ACTION
    assert r"RuntimeError: odd \x1b[31m" in found.detail
    assert found.todo


def test_lines_are_grouped_by_kind_and_end_in_the_verdict() -> None:
    findings = (
        Finding(
            kind=Kind.SOFTWARE,
            requirement="tool",
            verdict=Level.ACTION,
            detail="gone\x07",
            todo="Get\nit.",
        ),
        Finding(kind=Kind.HARDWARE, requirement="CPU", verdict=Level.OK, detail="x86_64"),
    )
    assert lines(findings) == (
        "hardware",
        "  CPU: x86_64: ok",
        "software",
        r"  tool: gone\x07: action",
        r"    -> Get\x0ait.",
    )
    assert stops(findings) == findings[:1]
    assert json.loads(json.dumps([finding.model_dump(mode="json") for finding in findings]))[1] == {
        "kind": "hardware", "requirement": "CPU", "verdict": "ok", "detail": "x86_64", "todo": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "stopped"), [(Level.OK, 0), (Level.NOTE, 0), (Level.ACTION, 1), (Level.FAIL, 1)]
)
def test_an_action_or_a_fail_stops_a_create(machine: Machine, verdict: Level, stopped: int) -> None:
    assert (
        len(stops(run_doctor(machine, driver="x", checks=(entry("one", says("one", verdict)),)))) == stopped
    )


def test_every_check_answers_for_its_own_kind_and_requirement_in_time(machine: Machine) -> None:
    began = monotonic()
    found = run_doctor(machine, driver="capsule")
    assert monotonic() - began < 5.0
    assert [(finding.kind, finding.requirement) for finding in found] == [
        (check.kind, check.requirement) for check in CHECKS if check.asked(machine)
    ]
    assert max(check.deadline_s for check in CHECKS) < 5.0
