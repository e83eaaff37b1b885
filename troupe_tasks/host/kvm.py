"""Tell whether this machine's KVM really runs a guest, and if not, in which of its ways it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from troupe_tasks.errors import ToolFailed, ToolTimeout
from troupe_tasks.host import kvm_probe
from troupe_tasks.process import Done, run

DEADLINE_S: Final = 2.5
_STEPS: Final = {"": "64-bit code", "L": "a long loop", "LF": "SSE instructions", "LFS": "its own halt"}
_ABSENT: Final = frozenset({"ENOENT", "ENXIO", "ENODEV"})
_DENIED: Final = frozenset({"EACCES", "EPERM"})


class KvmState(StrEnum):
    """What KVM is good for here; each but `works` has a remedy of its own."""

    WORKS = "works"
    ABSENT = "absent"
    DENIED = "denied"
    BUSY = "busy"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Kvm:
    """What the probe found, and the evidence."""

    state: KvmState
    detail: str


Runner = Callable[[Sequence[str | Path]], Done]


def check(device: Path = Path(kvm_probe.DEVICE), *, start: Runner | None = None) -> Kvm:
    """Run the probe in a child for at most DEADLINE_S and judge what it said. x86_64 only."""
    argv: list[str | Path] = [sys.executable, "-I", "-S", Path(kvm_probe.__file__), device]
    try:
        done = (start or _start)(argv)
    except ToolTimeout as error:
        said = _last(error.done.stdout).get("said", "") if isinstance(error.done, Done) else ""
        stage = _STEPS.get(said, "its first instruction")
        return Kvm(KvmState.BROKEN, f"a guest did not get through {stage} within {DEADLINE_S:g} s")
    except ToolFailed as error:
        return Kvm(KvmState.BROKEN, f"the probe itself failed: {error}")
    return _judge(_last(done.stdout))


def _start(argv: Sequence[str | Path]) -> Done:
    return run(argv, deadline_s=DEADLINE_S, cap_bytes=4096)


def _last(printed: bytes) -> dict[str, str]:
    """Return the last whole object that the probe printed, all of it text."""
    for row in reversed(printed.splitlines()):
        try:
            answer = json.loads(row)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return {str(key): str(value) for key, value in answer.items()}
    return {}


def _judge(answer: dict[str, str]) -> Kvm:
    said, step, error = answer.get("said", ""), answer.get("step", ""), answer.get("error", "")
    if said == kvm_probe.PASSED and not error:
        return Kvm(KvmState.WORKS, "a guest ran 64-bit code, a long loop and SSE")
    if step == "open" and error in _ABSENT:
        return Kvm(KvmState.ABSENT, f"there is no {kvm_probe.DEVICE}")
    if step == "open" and error in _DENIED:
        return Kvm(KvmState.DENIED, f"this user may not open {kvm_probe.DEVICE}")
    if step in ("open", "create") and error == "EBUSY":
        return Kvm(KvmState.BUSY, "another hypervisor holds the CPU's virtualization")
    if step == "run" or not step:
        return Kvm(
            KvmState.BROKEN, f"a guest failed at {_STEPS.get(said, 'its code')} ({error or 'wrong answer'})"
        )
    return Kvm(KvmState.BROKEN, f"a guest could not be made ({step}: {error})")
