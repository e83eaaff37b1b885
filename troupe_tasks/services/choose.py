"""Choose what keeps the services: systemd where it is the init and takes our units, else supervisor.

What keeps them already goes on doing so. A supervisor that runs is never left behind; once it is down (after a
machine restart, or when nothing is left to run) systemd takes over at the next start.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from troupe_tasks.paths import Paths
from troupe_tasks.services.protocol import Services

_BOOTED = Path("/run/systemd/system")  # sd_booted(3)
_LINGER = Path("/var/lib/systemd/linger")


def keeper(paths: Paths) -> Services:
    """Return the keeper of this home's services."""
    from troupe_tasks.services.supervisor import Supervisor
    from troupe_tasks.services.systemd import Systemd

    if not _BOOTED.is_dir() or _is_alive(paths.run / "supervisor"):
        return Supervisor(paths)
    systemd = Systemd(paths)
    if any((paths.state / "units").glob("*.json")):
        return systemd
    return systemd if lasting() and systemd.reachable() else Supervisor(paths)


def lasting(linger: Path = _LINGER) -> bool:
    """Tell whether this user's service manager outlives their logins: root's does, others' when they linger."""
    return os.geteuid() == 0 or (linger / pwd.getpwuid(os.geteuid()).pw_name).exists()


def _is_alive(folder: Path) -> bool:
    """Tell whether a supervisor of this home runs, or left programs running when it was killed."""
    from troupe_tasks.services import launch

    with suppress(OSError, ValueError):
        pid = int((folder / "supervisord.pid").read_text(encoding="ascii"))
        if b"supervisor" in Path("/proc", str(pid), "cmdline").read_bytes():
            return True
    return any(launch.holders(lock) for lock in (folder / "programs").glob("*.lock"))
