"""Run every check side by side, each with its own deadline; a hanging one costs no other anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final

from troupe_tasks.doctor import capsule, docker, hardware, release, systemd
from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.text import line

Check = Callable[[Machine], Finding]


@dataclass(frozen=True, slots=True)
class Entry:
    """One check: what it is about, how long it may take, what its silence means, and where it is asked."""

    kind: Kind
    requirement: str
    check: Check
    silence: Level = Level.NOTE
    deadline_s: float = 4.0
    asked: Callable[[Machine], bool] = lambda machine: True  # noqa: ARG005


CHECKS: Final = (
    Entry(Kind.HARDWARE, "CPU", hardware.cpu, Level.ACTION),
    Entry(Kind.HARDWARE, "KVM", hardware.virtualization),
    Entry(Kind.HARDWARE, "room for a coder agent", hardware.room),
    Entry(Kind.KEYS, "key tier", systemd.key_tier),
    Entry(Kind.SOFTWARE, "init", systemd.init),
    Entry(Kind.SOFTWARE, "sudo", systemd.sudo),
    Entry(Kind.SOFTWARE, "capsule programs", capsule.programs, Level.ACTION),
    Entry(Kind.SOFTWARE, "gVisor", capsule.gvisor, deadline_s=4.5),
    Entry(Kind.SOFTWARE, "user namespaces", capsule.user_namespaces, Level.ACTION),
    Entry(Kind.SOFTWARE, "subordinate IDs", capsule.subordinate_ids, Level.ACTION),
    Entry(Kind.SOFTWARE, "memory, CPU and process limits", capsule.limits),
    Entry(Kind.SOFTWARE, "disk limit", capsule.disk_limit),
    Entry(Kind.SOFTWARE, "sbx", docker.program, asked=docker.asked),
    Entry(Kind.SOFTWARE, "sbx sign-in", docker.sign_in, asked=docker.asked),
    Entry(Kind.SOFTWARE, "sbx daemon unit", docker.daemon_unit, asked=docker.is_driver),
    Entry(Kind.SOFTWARE, "troupe", release.current),
)


def run_doctor(
    machine: Machine, *, driver: str, checks: tuple[Entry, ...] = CHECKS, patience: int = 1
) -> tuple[Finding, ...]:
    """Return one finding for each check that is asked here, in order, after at most the longest deadline."""
    facts = replace(machine, driver=driver)
    began = monotonic()
    asked = [entry for entry in checks if entry.asked(facts)]
    patient = [replace(entry, deadline_s=entry.deadline_s * patience) for entry in asked]
    started = [(entry, _start(entry, facts)) for entry in patient]
    return tuple(_finding(entry, future, began + entry.deadline_s) for entry, future in started)


def _start(entry: Entry, machine: Machine) -> Future[Finding]:
    """Run a check in a thread that, should it hang, does not keep the process from ending."""
    future: Future[Finding] = Future()

    def work() -> None:
        try:
            future.set_result(entry.check(machine))
        except Exception as error:  # noqa: BLE001 - whatever a check meets is a finding, not an end of all checks
            future.set_exception(error)

    threading.Thread(target=work, name=f"doctor: {entry.requirement}", daemon=True).start()
    return future


def _finding(entry: Entry, future: Future[Finding], until: float) -> Finding:
    try:
        return future.result(timeout=max(0.0, until - monotonic()))
    except FutureTimeout:
        detail = f"did not answer in {entry.deadline_s:g} s"
    except Exception as error:  # noqa: BLE001 - see above
        detail = f"could not be checked: {line(f'{type(error).__name__}: {error}')}"
    return Finding(
        kind=entry.kind, requirement=entry.requirement, verdict=entry.silence, detail=detail,
        todo="Run `troupe doctor` again; if it stays so, look at what this check needs.",
    )  # fmt: skip
