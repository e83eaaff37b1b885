"""Tell how this troupe stands against its latest release."""

from __future__ import annotations

from troupe_tasks import __version__, releases
from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import TroupeError
from troupe_tasks.text import line


def current(machine: Machine) -> Finding:
    """Compare an installed troupe with the newest release; nothing here stops anything."""
    if machine.checkout:
        return _finding(Level.OK, "a checkout, which is not compared with releases")
    try:
        ours = machine.stamp()
        if ours is None or not ours.address:
            return _finding(
                Level.NOTE, f"{__version__}; this build has no release address to compare it with"
            )
        newest = machine.newest(ours.address)
    except TroupeError as error:
        return _finding(Level.NOTE, f"{__version__}; {line(str(error), 300)}")
    if releases.is_newer(newest, ours.version):
        return _finding(Level.NOTE, f"{ours.version}; {newest} is out", "`troupe update`")
    return _finding(Level.OK, f"{ours.version}, the latest release")


def _finding(verdict: Level, detail: str, todo: str = "") -> Finding:
    return Finding(kind=Kind.SOFTWARE, requirement="troupe", verdict=verdict, detail=detail, todo=todo)
