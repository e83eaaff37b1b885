"""Check what systemd offers here: the key tier, and the init that gateways run under."""

from __future__ import annotations

from typing import Final

from troupe_tasks.doctor import docker
from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.keystore import choose
from troupe_tasks.keystore.tiers import Tier

_TESTED: Final = 259
_KEPT: Final = {
    Tier.TPM: "TPM: keys are sealed by the TPM and the host key",
    Tier.HOST_KEY: "host key: keys are encrypted, but a copy of the disk can read them",
    Tier.FILE: "file: keys are plain files that only you can read; a copy of the disk can too",
}


def key_tier(machine: Machine) -> Finding:
    """Name the key tier that keys will get."""
    chosen = choose.strongest(machine.run, root=machine.root)
    best = chosen.tier is Tier.TPM
    return Finding(
        kind=Kind.KEYS, requirement="key tier", verdict=Level.OK if best else Level.NOTE,
        detail=f"{_KEPT[chosen.tier]} ({chosen.why})",
        todo="" if best else "A TPM 2.0 and systemd 256 or newer protect keys better; `create` asks first.",
    )  # fmt: skip


def init(machine: Machine) -> Finding:
    """Check for systemd as the running init that keeps this user's services; else a supervisor holds the gateways."""
    if not machine.has("/run/systemd/system"):
        if docker.is_driver(machine):
            return _init(Level.ACTION, "systemd is not the init here, and nothing else keeps Docker's sandbox daemon",
                         "Use a machine that systemd runs, or `troupe config set driver capsule`.")  # fmt: skip
        return _init(Level.NOTE, "systemd is not the init here: a supervisor runs the gateways",
                     "After a machine restart, run `troupe start --all`.")  # fmt: skip
    if not machine.is_root and not machine.has(f"/var/lib/systemd/linger/{machine.user}"):
        return _init(Level.NOTE, "your own systemd ends with your last login: a supervisor runs the gateways",
                     "`loginctl enable-linger` lets systemd run them, and after a machine restart too.")  # fmt: skip
    found = choose.version_of("systemctl", run=machine.run)
    if found is None:
        return _init(Level.NOTE, "systemd is the init, but does not tell its version")
    if found < _TESTED:
        return _init(Level.NOTE, f"systemd {found} is older than the version tested ({_TESTED})")
    return _init(Level.OK, f"systemd {found}")


def sudo(machine: Machine) -> Finding:
    """Check for sudo, by which an ordinary user's `create` installs system packages, and the installer sbx's unit."""
    if machine.is_root or machine.which("sudo"):
        return _software("sudo", Level.OK, "not needed: you are root" if machine.is_root else "installed")
    todo = "As root: `apt-get install sudo`."
    if docker.is_driver(machine) and docker.lacks_unit(machine):
        return _software(
            "sudo", Level.ACTION, "not installed: the sandbox daemon's unit takes root to install", todo
        )
    return _software(
        "sudo", Level.NOTE, "not installed: system packages that are missing take root to install", todo
    )


def _init(verdict: Level, detail: str, todo: str = "") -> Finding:
    return _software("init", verdict, detail, todo)


def _software(requirement: str, verdict: Level, detail: str, todo: str = "") -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=verdict, detail=detail, todo=todo)
