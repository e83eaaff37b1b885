"""Keep services up with systemd: root's under the system manager, an ordinary user's under their own.

Starting a service also enables it, so that a machine restart brings it back; stopping it disables it. An
enabled unit that systemd gave up on is failed, a disabled one is stopped, whatever systemd remembers of it.
Files are installed before the manager is told, and the note that says so is written last: an `add` that was
interrupted is simply done again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from troupe_tasks import durable, locks, process, strict
from troupe_tasks.errors import NotReady
from troupe_tasks.paths import Paths
from troupe_tasks.services import units
from troupe_tasks.services.protocol import WRITTEN_ANEW, Phase, Service, ServiceState
from troupe_tasks.services.units import Files, Unit

_CALL_S = 30.0
_ASKED = (
    "Id", "LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecMainCode", "ExecMainStatus", "NRestarts",
    "StateChangeTimestampMonotonic", "ActiveEnterTimestampMonotonic",
)  # fmt: skip
_EXITED = 1
_SIGNALLED = range(129, 193)  # as relay.py and shells say it
_NOT_STARTED = range(200, 250)  # systemd.exec(5): what systemd itself ended with, before the program


class Systemd:
    """The services of one operator, as units of the system's or the user's own service manager."""

    def __init__(self, paths: Paths, *, place: units.Place | None = None) -> None:
        self._paths = paths
        self._place = place or units.place()
        self._own = paths.state / "units"

    def reachable(self) -> bool:
        """Tell whether the service manager answers."""
        return self._call("show", "--property=Version", ok=None).status == 0

    def add(self, service: Service) -> None:
        """Make a service known, or change it; it is left stopped, unless it ran just so already."""
        durable.make_private_dir(self._own)
        durable.make_private_dir(service.log.parent)
        contents = units.contents(service, self._paths, self._place)
        wanted = units.note(service, self._paths, self._place, contents)
        where = self._files(service.name)
        with self._locked():
            if self._notes().get(service.name) == wanted and _are_there(contents):
                return
            if where.note.exists():
                self._stop([service.name])
                where.note.unlink()
            for path, data in contents.items():
                self._install(path, data)
            self._call("daemon-reload")
            durable.write(where.note, wanted.model_dump_json(indent=1).encode() + b"\n")

    def remove(self, name: str) -> None:
        """Stop a service and forget it."""
        with self._locked():
            self._remove(name)

    def start(self, names: Iterable[str]) -> None:
        """Start services; one that runs is left alone. Raises NotReady for one that is not known."""
        with self._locked():
            self._start(list(names))

    def stop(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop services, all at once, and return those that had to be killed."""
        with self._locked():
            return self._stop(list(names))

    def restart(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop and start services, and return those that had to be killed."""
        chosen = list(names)
        with self._locked():
            killed = self._stop(chosen)
            self._start(chosen)
            return killed

    def states(self) -> dict[str, ServiceState]:
        """Return every known service's state, in one call to the manager."""
        notes = self._notes()
        shown = self._show([note.unit for note in notes.values()])
        return {name: self._state(name, note, shown.get(note.unit, {})) for name, note in notes.items()}

    def shutdown(self) -> None:
        """Stop every service and take its unit away; the manager is the machine's own and stays."""
        with self._locked():
            notes = self._notes()
            self._stop(list(notes))
            for name in notes:
                self._remove(name)
            durable.remove_tree(self._own)

    def _start(self, names: list[str]) -> None:
        notes = self._notes()
        for name in names:
            if name not in notes:
                raise NotReady(
                    f"the service {name} could not be started", cause="it has no unit",
                    hint="`troupe start ID` writes its unit anew.",
                )  # fmt: skip
            self._enable(self._files(name))
        chosen = {name: notes[name] for name in names}
        shown = self._show([note.unit for note in chosen.values()])
        down = [
            n.unit for name, n in chosen.items() if not self._state(name, n, shown.get(n.unit, {})).phase.up
        ]
        if not down:
            return
        self._call("reset-failed", *down, ok=None)  # not loaded yet: nothing to forget
        # One that is just stopping is waited for.
        wait_s = max(note.stop_wait_s for note in chosen.values())
        done = self._call("start", *down, ok=None, deadline_s=_CALL_S + wait_s)
        if done.status != 0:
            from troupe_tasks.text import line

            raise NotReady(
                "a service could not be started", cause=line(done.stderr, 300),
                hint=f"`systemctl {' '.join((*self._place.options, 'status', *down))}` says more.",
            )  # fmt: skip

    def _stop(self, names: list[str]) -> tuple[str, ...]:
        notes = self._notes()
        chosen = {name: notes[name] for name in names if name in notes}
        if not chosen:
            return ()
        for name in chosen:
            self._disable(self._files(name))
        targets = [note.unit for note in chosen.values()]
        wait_s = max(note.stop_wait_s for note in chosen.values())
        before = self._show(targets)
        self._call("stop", *targets, deadline_s=wait_s + 2 * _CALL_S)
        after = self._show(targets)
        failed = [unit for unit in targets if after.get(unit, {}).get("ActiveState") == "failed"]
        if failed:
            self._call("reset-failed", *failed, ok=None)
        ran = {
            unit for unit, facts in before.items() if facts.get("ActiveState") in {"active", "deactivating"}
        }
        return tuple(sorted(
            name for name, note in chosen.items()
            if note.unit in ran and after.get(note.unit, {}).get("Result") == "timeout"
        ))  # fmt: skip

    def _remove(self, name: str) -> None:
        where = self._files(name)
        self._stop([name])
        present = [path for path in (*where.own(), where.env, where.note) if path.exists()]
        if timers := [path.name for path in where.extra if path.suffix == ".timer" and path.exists()]:
            self._call("stop", *timers)
        for path in where.own():
            path.unlink(missing_ok=True)
            if path.parent != self._place.folder:
                durable.remove_tree(path.parent)
        where.env.unlink(missing_ok=True)
        drop_ins = where.base.name.replace("@.", "@*.") + ".d"
        if not any(self._place.folder.glob(drop_ins)):
            where.base.unlink(missing_ok=True)
        if present:
            self._call("daemon-reload")
        where.note.unlink(missing_ok=True)

    def _enable(self, where: Files) -> None:
        if where.link.is_symlink():
            return
        with durable.told(where.link):
            where.link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            where.link.symlink_to(f"../{where.base.name}")
            durable.sync_dir(where.link.parent)

    def _disable(self, where: Files) -> None:
        if where.link.is_symlink():
            with durable.told(where.link):
                where.link.unlink()
                durable.sync_dir(where.link.parent)

    def _install(self, path: Path, data: bytes) -> None:
        if path.parent != self._own:
            with durable.told(path):
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # The environment is nobody else's business; unit files are read by every user's `systemctl cat`.
        durable.write(path, data, 0o600 if path.parent == self._own else 0o644)

    def _files(self, name: str) -> Files:
        return units.files(name, self._paths, self._place)

    def _notes(self) -> dict[str, Unit]:
        return {path.stem: _read(path) for path in sorted(self._own.glob("*.json"))}

    def _locked(self) -> Any:
        return locks.named(self._paths, "systemd", wait_s=120)

    def _show(self, targets: list[str]) -> dict[str, dict[str, str]]:
        if not targets:
            return {}
        done = self._call("show", f"--property={','.join(_ASKED)}", "--", *targets)
        blocks = done.stdout.decode(errors="replace").split("\n\n")
        found = [dict(row.partition("=")[::2] for row in block.splitlines()) for block in blocks]
        return {facts["Id"]: facts for facts in found if "Id" in facts}

    def _call(
        self, *words: str, ok: tuple[int, ...] | None = (0,), deadline_s: float = _CALL_S
    ) -> process.Done:
        runtime = f"/run/user/{os.geteuid()}"
        env = {} if self._place.system else {"XDG_RUNTIME_DIR": runtime}
        argv = ["systemctl", *self._place.options, "--no-ask-password", "--no-pager", *words]
        return process.run(argv, env=env, deadline_s=deadline_s, ok=ok, cap_bytes=4 << 20)

    def _state(self, name: str, note: Unit, facts: Mapping[str, str]) -> ServiceState:
        phase, why = self._phase(name, note, facts)
        running = phase in {Phase.STARTING, Phase.RUNNING}
        stamp = _number(facts, f"{'ActiveEnter' if running else 'StateChange'}TimestampMonotonic") / 1e6
        return ServiceState(
            phase=phase,
            pid=_number(facts, "MainPID") or None,
            since=time.time() - (time.monotonic() - stamp) if stamp else None,
            exit=_number(facts, "ExecMainStatus") if phase is Phase.ENDED else None,
            why=why,
        )

    def _phase(self, name: str, note: Unit, facts: Mapping[str, str]) -> tuple[Phase, str]:
        match facts.get("ActiveState", "inactive"), facts.get("SubState", ""):
            case ("active" | "reloading" | "refreshing", _):
                up_s = time.monotonic() - _number(facts, "ActiveEnterTimestampMonotonic") / 1e6
                return (Phase.RUNNING if up_s >= note.start_s else Phase.STARTING), ""
            case ("activating", "auto-restart" | "auto-restart-queued"):
                return Phase.WAITING, _ended(facts)
            case ("activating", _):
                return Phase.STARTING, ""
            case ("deactivating", _):
                return Phase.STOPPING, ""
        wanted = self._files(name).link.is_symlink()
        exited = _number(facts, "ExecMainCode") == _EXITED
        if wanted and exited and _number(facts, "ExecMainStatus") in note.final_exits:
            return Phase.ENDED, ""
        if wanted and facts.get("ActiveState") == "failed":
            return Phase.FAILED, f"it ended too quickly too often; the last time it {_ended(facts)}"
        return Phase.STOPPED, ""


def _read(path: Path) -> Unit:
    return strict.parse(Unit, durable.read_private(path), place=path, hint=WRITTEN_ANEW)


def _are_there(contents: Mapping[Path, bytes]) -> bool:
    try:
        return all(path.read_bytes() == data for path, data in contents.items())
    except OSError:
        return False


def _number(facts: Mapping[str, str], name: str) -> int:
    value = facts.get(name, "")
    return int(value) if value.isdecimal() else 0


def _ended(facts: Mapping[str, str]) -> str:
    """Return in words how a service's program ended last."""
    status = _number(facts, "ExecMainStatus")
    if facts.get("Result") == "oom-kill":
        return "ran out of memory"
    if facts.get("Result") == "resources":
        return "could not be started (a file or a right was missing; the journal names it)"
    if _number(facts, "ExecMainCode") != _EXITED:
        return f"was ended by signal {status}"
    if status in _SIGNALLED:
        return f"was ended by signal {status - 128}"
    return (
        f"could not be started (systemd's status {status})"
        if status in _NOT_STARTED
        else f"ended with status {status}"
    )
