"""Check what the driver sbx stands on: Docker's program, its sign-in. Asked when it is the driver, or is here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import TroupeError
from troupe_tasks.sandbox.sbx import calls
from troupe_tasks.sandbox.sbx.signin import Standing
from troupe_tasks.services import daemon
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
    return _ok("sbx", f"{line(found)} is new enough")


def sign_in(machine: Machine) -> Finding:
    """Check in its store that sbx is signed in; a keyring is not opened for that."""
    name, todo = "sbx sign-in", "`sbx login`"
    found = machine.signed_in()
    if found.standing is Standing.IN:
        return _ok(name, f"signed in as {line(found.user, 60)}")
    if found.standing is Standing.DAMAGED:
        return _finding(
            machine, name, f"its store is damaged: {line(found.why, 200)}", f"{todo} writes it anew."
        )
    if found.standing is Standing.KEYRING and machine.has("/run/systemd/system"):
        return _finding(
            machine, name, "if anywhere it is in your keyring, which no gateway's unit can open",
            f"{todo} in a session without a keyring (over ssh).",
        )  # fmt: skip
    if found.standing is Standing.KEYRING:
        return Finding(
            kind=Kind.SOFTWARE, requirement=name, verdict=Level.NOTE,
            detail="it may be in your keyring, which is not opened here",
            todo=f"`sbx ls` tells; if it does not, {todo}.",
        )  # fmt: skip
    return _finding(machine, name, "not signed in to Docker", todo)


def is_driver(machine: Machine) -> bool:
    """Tell whether agents of this machine get Docker's sandboxes."""
    return machine.driver == "sbx"


def daemon_unit(machine: Machine) -> Finding:
    """Check that the sandbox daemon's unit is installed, current, and runs the daemon."""
    name, found = "sbx daemon unit", machine.sbx()
    if found is None:
        return _finding(machine, name, "there is no sbx yet", "The line `sbx` says how.")
    if not machine.has("/run/systemd/system"):
        return _note(name, "systemd is not the init here: the daemon is started when a command needs it")
    if machine.signed_in().standing is Standing.KEYRING:
        return _note(name, "left out: no unit can open your keyring, where sbx may keep its sign-in")
    how = daemon.standing(Path(found), machine.user, run=machine.run, text=machine.text)
    if how.settled:
        return _ok(name, "installed, current, and running the daemon")
    return _finding(machine, name, *_unsettled(machine, how))


def lacks_unit(machine: Machine) -> bool:
    """Tell whether root has yet to put the daemon's unit in place, now or once sbx is there."""
    if not machine.has("/run/systemd/system") or machine.signed_in().standing is Standing.KEYRING:
        return False
    found = machine.sbx()
    if found is None:
        return True
    return not daemon.standing(Path(found), machine.user, run=machine.run, text=machine.text).in_place


def _unsettled(machine: Machine, how: daemon.Standing) -> tuple[str, str]:
    """Return what is wrong with the unit, and what to do."""
    by_hand = ".venv/bin/python -I -m troupe_tasks.operations.daemon"
    todo = f"`{by_hand}` installs it." if machine.checkout else "Run the installer again."
    if how.owner not in ("", machine.user):
        return f"it runs the daemon of {line(how.owner, 60)}", "Use troupe as that user."
    if how.outside:
        return "a daemon runs outside it", f"`sbx daemon stop`, which stops every sandbox. {todo}"
    restart = machine.sudo(f"systemctl restart {daemon.UNIT}")
    if how.failed:
        return (
            f"failed {line(how.failed, 120)}",
            f"`journalctl -u {daemon.UNIT}` says why; `{restart}` tries again.",
        )
    if not how.current:
        return "not installed, or not current", todo
    if how.starting:
        return (
            "is being started",
            f"Ask again in a minute; `journalctl -u {daemon.UNIT}` says what it waits for.",
        )
    if not how.enabled or not how.active:
        return "not started" if how.enabled else "not started with the machine", todo
    if how.elsewhere:
        return (
            "the daemon does not answer in the folders that this session names by XDG_…_HOME",
            f"Name those that `systemctl cat {daemon.UNIT}` shows, or none where it shows none.",
        )
    return "the daemon does not answer", f"`{restart}`, which stops every sandbox."


def _note(requirement: str, detail: str) -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=Level.NOTE, detail=detail)


def _ok(requirement: str, detail: str) -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=Level.OK, detail=detail)


def _finding(machine: Machine, requirement: str, detail: str, todo: str) -> Finding:
    """Return what has to be done where sbx is the driver, and is only noted elsewhere."""
    verdict = Level.ACTION if machine.driver == "sbx" else Level.NOTE
    return Finding(kind=Kind.SOFTWARE, requirement=requirement, verdict=verdict, detail=detail, todo=todo)
