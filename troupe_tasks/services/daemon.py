"""The unit of Docker's sandbox daemon: what belongs in it, and how it stands.

It is the system manager's, for it has to be there before anybody logs in, and runs as the one user whose sandboxes
it holds. Writing it takes root; reading how it stands takes nobody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from troupe_tasks import resources
from troupe_tasks.errors import TroupeError
from troupe_tasks.host import processes
from troupe_tasks.process import Done
from troupe_tasks.sandbox.sbx import answers
from troupe_tasks.services.units import quoted

UNIT: Final = "sbx-daemon.service"
FOLDER: Final = Path("/etc/systemd/system")
_ASKED = ("ActiveState", "UnitFileState", "StateChangeTimestamp", "Result", "MainPID", "NeedDaemonReload")
# Where sbx keeps its things: its program and its daemon must look in the same places.
_PLACES = ("SANDBOXES_STORAGE_ROOT", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
_USER = re.compile(r"^User=(.*)$", re.MULTILINE)
_PLACE = re.compile(rf'^Environment="(?:{"|".join(_PLACES)})=.*"$', re.MULTILINE)
_DROP_IN: Final = FOLDER / f"{UNIT}.d" / "troupe.conf"

Run = Callable[[Sequence[str]], Done]
Text = Callable[[str], str]


def contents(sbx: Path, user: str, *, text: Text, env: Mapping[str, str] = os.environ) -> dict[Path, str]:
    """Return each file of the unit with what belongs in it; text reads a small file of the machine's.

    The places of an installed one stay: a session that names others (over ssh, by a timer) must not move its things.
    """
    there = text(str(_DROP_IN))
    rows = [
        "# Written by troupe's installer: changes here are lost.",
        "[Service]",
        f"User={user}",
        f"Environment={quoted(f'SBX={sbx}')}",
        *(_PLACE.findall(there) if _USER.search(there) else _session(env)),
    ]
    unit = (resources.units_dir() / UNIT).read_text(encoding="utf-8")
    return {FOLDER / UNIT: unit, _DROP_IN: "\n".join(rows) + "\n"}


def _session(env: Mapping[str, str]) -> list[str]:
    """Return the rows that name this session's places."""
    named = (f"{name}={env[name]}" for name in _PLACES if env.get(name, "").startswith("/"))
    return [f"Environment={quoted(pair)}" for pair in named]


@dataclass(frozen=True)
class Standing:
    """How the unit stands: its files, what systemd says of it, whether a daemon answers, and whose it is.

    current: its files are what belongs in them, and systemd has read them.
    elsewhere: this session names other places than the unit has, so the daemon that it asks may be another.
    starting: systemd is bringing it up, and has a process of it. What answers then is that one.
    silent: sbx does not say whether a daemon runs, and one does.
    """

    current: bool
    owner: str
    elsewhere: bool
    active: bool
    starting: bool
    enabled: bool
    failed: str
    answers: bool
    silent: bool

    @property
    def in_place(self) -> bool:
        """Tell whether root has nothing to do: the daemon is the unit's, well or not."""
        return self.current and self.enabled and (self.active or self.starting)

    @property
    def settled(self) -> bool:
        """Tell whether nothing has to be done."""
        return self.in_place and self.active and self.answers

    @property
    def outside(self) -> bool:
        """Tell whether a daemon runs that the unit did not start."""
        return (self.answers or self.silent) and not (self.active or self.starting)


def _runs() -> bool:
    """Tell whether a sandbox daemon is among this machine's processes."""
    return processes.resident_mib("sbx", "daemon", "start") > 0


def standing(
    sbx: Path,
    user: str,
    *,
    run: Run,
    text: Text,
    runs: Callable[[], bool] = _runs,
    env: Mapping[str, str] = os.environ,
) -> Standing:
    """Return how the unit stands; run runs a program, text reads a small file, runs looks at the processes."""
    wanted = contents(sbx, user, text=text, env=env)
    shown = run(["systemctl", "show", f"--property={','.join(_ASKED)}", "--", UNIT])
    facts = dict(row.partition("=")[::2] for row in shown.stdout.decode(errors="replace").splitlines())
    owner = _USER.search(text(str(_DROP_IN)))
    said = _answers(sbx, run)
    failed = f"since {facts.get('StateChangeTimestamp', '')}: {facts.get('Result', '')}"
    return Standing(
        # What put its files there may have been killed before it told systemd, which goes on with the older ones.
        current=facts.get("NeedDaemonReload") != "yes"
        and all(text(str(path)) == data for path, data in wanted.items()),
        owner=owner[1] if owner else "",
        elsewhere=_PLACE.findall(wanted[_DROP_IN]) != _session(env),
        active=facts.get("ActiveState") == "active",
        # Between two tries it is activating as well, without a process: whatever answers then is another's.
        starting=facts.get("ActiveState") == "activating" and facts.get("MainPID", "0") != "0",
        enabled=facts.get("UnitFileState") == "enabled",
        failed=failed if facts.get("ActiveState") == "failed" else "",
        answers=said is True,
        silent=said is None and runs(),
    )


def _answers(sbx: Path, run: Run) -> bool | None:
    """Return whether a daemon answers, or None where sbx does not say so in time, or not so that it reads."""
    try:
        done = run([str(sbx), "daemon", "status", "--json"])
        return answers.decode(answers.Status, done.stdout, command="sbx daemon status").status == "running"
    except TroupeError:
        return None
