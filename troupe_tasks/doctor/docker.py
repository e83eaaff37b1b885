"""Check what the driver sbx stands on: Docker's program, its sign-in. Asked when it is the driver, or is here."""

from __future__ import annotations

from typing import Final

from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import TroupeError
from troupe_tasks.sandbox.sbx import calls
from troupe_tasks.sandbox.sbx.signin import Standing
from troupe_tasks.text import line

_GET: Final = "docs.docker.com/ai/sandboxes says how to install it; on Ubuntu it is the package docker-sbx."


def asked(machine: Machine) -> bool:
    """Tell whether this machine is asked about sbx at all."""
    return machine.driver == "sbx" or machine.sbx() is not None


def program(machine: Machine) -> Finding:
    """Check for sbx, its release, and that its daemon is the same one."""
    found = machine.sbx()
    if found is None:
        return _finding(machine, "sbx", "not installed", _GET)
    try:
        calls.check(run=lambda words: machine.run([found, *words]))
    except TroupeError as error:
        return _finding(machine, "sbx", line(str(error), 300), line(error.hint, 300))
    return Finding(
        kind=Kind.SOFTWARE, requirement="sbx", verdict=Level.OK, detail=f"{line(found)} is new enough"
    )


def sign_in(machine: Machine) -> Finding:
    """Check in its store that sbx is signed in; a keyring is not opened for that."""
    name, todo = "sbx sign-in", "`sbx login`"
    found = machine.signed_in()
    if found.standing is Standing.IN:
        return Finding(
            kind=Kind.SOFTWARE,
            requirement=name,
            verdict=Level.OK,
            detail=f"signed in as {line(found.user, 60)}",
        )
    if found.standing is Standing.DAMAGED:
        return _finding(
            machine, name, f"its store is damaged: {line(found.why, 200)}", f"{todo} writes it anew."
        )
    if found.standing is Standing.KEYRING:
        return Finding(
            kind=Kind.SOFTWARE, requirement=name, verdict=Level.NOTE,
            detail="it may be in your keyring, which is not opened here",
            todo=f"`sbx ls` tells; if it does not, {todo}.",
        )  # fmt: skip
    return _finding(machine, name, "not signed in to Docker", todo)


def _ok(requirement: str, detail: str) -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=Level.OK, detail=detail)


def _finding(machine: Machine, requirement: str, detail: str, todo: str) -> Finding:
    """Return what has to be done where sbx is the driver, and is only noted elsewhere."""
    verdict = Level.ACTION if machine.driver == "sbx" else Level.NOTE
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=verdict, detail=detail, todo=todo)
