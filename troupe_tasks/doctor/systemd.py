"""Check what systemd offers here: the key tier, and the init that gateways run under."""

from __future__ import annotations

import re
from typing import Final

from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import ToolFailed, ToolMissing

_TESTED: Final = 259
_CREDENTIALS: Final = 256
_VERSION = re.compile(rb"^systemd ([0-9]{1,5})\b")


def version(machine: Machine, program: str) -> int | None:
    """Return the version that one of systemd's programs is of, or None where it does not answer."""
    try:
        match = _VERSION.match(machine.run([program, "--version"]).stdout)
    except (ToolMissing, ToolFailed):
        return None
    return int(match.group(1)) if match else None


def key_tier(machine: Machine) -> Finding:
    """Name the key tier that keys will get."""
    found = version(machine, "systemd-creds")
    if found is None or found < _CREDENTIALS:
        why = "no systemd-creds" if found is None else f"systemd {found} is older than {_CREDENTIALS}"
        return _tier(
            "file", f"{why}: keys are plain files that only you can read; a copy of the disk can too"
        )
    if _has_tpm(machine):
        return Finding(
            kind=Kind.KEYS, requirement="key tier", verdict=Level.OK,
            detail=f"TPM: keys are sealed by the TPM and the host key (systemd {found})",
        )  # fmt: skip
    return _tier(
        "host key", "no fully supported TPM: keys are encrypted, but a copy of the disk can read them"
    )


def _tier(name: str, detail: str) -> Finding:
    return Finding(
        kind=Kind.KEYS, requirement="key tier", verdict=Level.NOTE, detail=f"{name}: {detail}",
        todo="A machine with a TPM 2.0 and systemd 256 or newer protects keys better; `create` asks first.",
    )  # fmt: skip


def _has_tpm(machine: Machine) -> bool:
    # systemd 257 moved the question; its status is 0 for full support alone, whatever it prints.
    for argv in (["systemd-analyze", "has-tpm2"], ["systemd-creds", "has-tpm2"]):
        try:
            done = machine.run(argv)
        except (ToolMissing, ToolFailed):
            continue
        if done.status == 0:
            return True
    return False


def init(machine: Machine) -> Finding:
    """Check for systemd as the running init; without it a supervisor holds the gateways."""
    if not machine.has("/run/systemd/system"):
        return _init(Level.NOTE, "systemd is not the init here: a supervisor runs the gateways",
                     "After a machine restart, run `troupe start --all`.")  # fmt: skip
    found = version(machine, "systemctl")
    if found is None:
        return _init(Level.NOTE, "systemd is the init, but does not tell its version")
    if found < _TESTED:
        return _init(Level.NOTE, f"systemd {found} is older than the version tested ({_TESTED})")
    return _init(Level.OK, f"systemd {found}")


def sudo(machine: Machine) -> Finding:
    """Check for sudo where units could be installed with it."""
    if machine.is_root or machine.which("sudo"):
        return _software("sudo", Level.OK, "not needed: you are root" if machine.is_root else "installed")
    if not machine.has("/run/systemd/system"):
        return _software("sudo", Level.OK, "not needed: there are no units to install")
    return _software("sudo", Level.NOTE, "not installed: a supervisor runs the gateways, not units",
                     "As root: `apt-get install sudo`.")  # fmt: skip


def _init(verdict: Level, detail: str, todo: str = "") -> Finding:
    return _software("init", verdict, detail, todo)


def _software(requirement: str, verdict: Level, detail: str, todo: str = "") -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=verdict, detail=detail, todo=todo)
