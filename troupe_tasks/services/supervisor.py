"""Keep services up with supervisord (PyPI), where systemd is not the init.

supervisord is started by the first command that needs it and lives until `shutdown`. If it is killed, the
next command starts it again together with the services that were wanted; their orphans are stopped first
(services/launch.py). After a machine restart nothing starts by itself: `troupe start --all` does it, in
order.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from troupe_tasks import durable, locks, process
from troupe_tasks.errors import DiskFull, NotReady
from troupe_tasks.paths import Paths
from troupe_tasks.services import launch, rpc, settings, supervisord
from troupe_tasks.services.protocol import Phase, Service, ServiceState
from troupe_tasks.text import line

_START_S = 15.0
_DO_NOT_WAIT = False
_STOPPING = 40
_ALIVE = (10, 20)  # starting, running
_PHASES = {
    0: Phase.STOPPED, 10: Phase.STARTING, 20: Phase.RUNNING, 30: Phase.WAITING, 40: Phase.STOPPING,
    100: Phase.ENDED, 200: Phase.FAILED,
}  # fmt: skip
_DETACHED = 'umask 077; exec setsid --fork "$@" </dev/null >startup.log 2>&1'


class Supervisor:
    """The services of one operator, under one supervisord."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._folder = paths.run / "supervisor"
        self._socket = self._folder / settings.SOCKET

    def add(self, service: Service) -> None:
        """Make a service known, or change it; it is left stopped, unless it ran just so already."""
        durable.make_private_dir(self._folder / "programs")
        durable.make_private_dir(service.log.parent)
        wanted = settings.spec(service, self._folder)
        with self._locked():
            known = settings.load(self._folder).get(service.name)
            if known != wanted:
                if known is not None:
                    self._drop(known)
                settings.save(self._folder, wanted)
            self.ensure_running()
            settings.write(self._folder)
            self._call("reloadConfig")
            self._call("addProcessGroup", service.name, ok=(rpc.ALREADY_ADDED,))

    def remove(self, name: str) -> None:
        """Stop a service and forget it."""
        with self._locked():
            known = settings.load(self._folder).get(name)
            if known is None:
                return
            self._drop(known)
            for end in ("json", "lock", "tries"):
                (self._folder / "programs" / f"{name}.{end}").unlink(missing_ok=True)
            settings.write(self._folder)
            with suppress(rpc.Down):
                self._call("reloadConfig")

    def start(self, names: Iterable[str]) -> None:
        """Start services; one that runs is left alone. Raises NotReady for one that is not known."""
        with self._locked():
            chosen = list(names)
            self.ensure_running()
            self._want(self._wanted() | set(chosen))
            for name in chosen:
                self._start(name)

    def stop(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop services, all at once, and return those that had to be killed."""
        with self._locked():
            return self._stop(list(names))

    def restart(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop and start services, and return those that had to be killed."""
        chosen = list(names)
        killed = self.stop(chosen)
        self.start(chosen)
        return killed

    def states(self) -> dict[str, ServiceState]:
        """Return every known service's state, in one call; a killed supervisord that had work comes back."""
        names = self._names()
        if not names:
            return {}
        try:
            found = self._call("getAllProcessInfo")
        except rpc.Down:
            if not self._wanted():
                return dict.fromkeys(names, ServiceState(Phase.STOPPED))
            with self._locked():
                self.ensure_running()
            found = self._call("getAllProcessInfo")
        known = {str(info["name"]): info for info in found}
        down = ServiceState(Phase.STOPPED)
        return {name: self._state(name, known[name]) if name in known else down for name in names}

    def ensure_running(self) -> None:
        """Start supervisord if it is not running, and what was wanted since this machine's last start."""
        if self._alive():
            return
        durable.make_private_dir(self._folder / "programs")
        settings.write(self._folder)
        program = [sys.executable, "-P", supervisord.__file__, "-n", "-c", "supervisord.conf"]
        process.run(["/bin/sh", "-c", _DETACHED, "sh", *program], cwd=self._folder, deadline_s=_START_S)
        until = time.monotonic() + _START_S
        while not self._alive():
            if time.monotonic() > until:
                said = (self._folder / "startup.log").read_bytes()[:2000]
                raise NotReady(f"supervisord did not start within {_START_S:g} s", cause=line(said, 300),
                               hint=f"{self._folder / 'supervisord.log'} may say more.")  # fmt: skip
            time.sleep(0.02)
        known = self._names()
        for name in self._wanted():
            if name in known:
                self._start(name)

    def shutdown(self) -> None:
        """Stop every service and supervisord itself."""
        with self._locked():
            known = settings.load(self._folder)
            with suppress(DiskFull):
                self._stop(list(known))
            with suppress(rpc.Down):
                pid = int(self._call("getPID"))
                self._call("shutdown")
                until = time.monotonic() + _START_S
                while Path("/proc", str(pid)).exists() and not _is_zombie(pid) and time.monotonic() < until:
                    time.sleep(0.02)
            self._socket.unlink(missing_ok=True)

    def _alive(self) -> bool:
        try:
            self._call("getState")
        except rpc.Down:
            return False
        return True

    def _call(self, method: str, *arguments: Any, ok: tuple[int, ...] = ()) -> Any:
        return rpc.call(self._socket, method, *arguments, ok=ok)

    def _locked(self) -> Any:
        return locks.named(self._paths, "supervisor", wait_s=120)

    def _names(self) -> list[str]:
        return sorted(path.stem for path in (self._folder / "programs").glob("*.json"))

    def _start(self, name: str) -> None:
        """Start a service, unless it runs; one that waits for its next try is tried at once."""
        try:
            tries = self._tries(name)
            held_back = tries.waits() or bool(tries.given_up)
            if self._call("getProcessInfo", name)["state"] in _ALIVE and not held_back:
                return
            self._call("stopProcess", name, ok=(rpc.NOT_RUNNING,))
            self._note(name).unlink(missing_ok=True)
            self._call("startProcess", name, _DO_NOT_WAIT, ok=(rpc.ALREADY_STARTED,))
        except rpc.Fault as fault:
            hint = "`troupe start ID` writes its description anew." if fault.code == rpc.BAD_NAME else ""
            raise NotReady(f"the service {name} could not be started", cause=str(fault), hint=hint) from fault

    def _stop(self, names: list[str]) -> tuple[str, ...]:
        known = settings.load(self._folder)
        chosen = {name: known[name] for name in names if name in known}
        full: DiskFull | None = None
        try:
            self._want(self._wanted() - set(chosen))
        except DiskFull as error:
            full = error  # they are stopped all the same
        killed: set[str] = set()
        with suppress(rpc.Down):
            for name in chosen:
                self._call("stopProcess", name, _DO_NOT_WAIT, ok=(rpc.NOT_RUNNING, rpc.BAD_NAME))
            killed = self._wait_for_end(chosen)
        for name, one in chosen.items():
            # An orphan: its supervisord was killed, and no other one knows of it.
            lock = self._folder / "programs" / f"{name}.lock"
            if launch.holders(lock) and not launch.end_holders(lock, one.stop_wait_s):
                left = ", ".join(map(str, launch.holders(lock)))
                raise NotReady(f"the service {name} could not be stopped", cause=f"processes {left}")
        if full is not None:
            for name in chosen:
                self._forget(name)
            raise full
        return tuple(sorted(killed))

    def _forget(self, name: str) -> None:
        # There is no room to note that it is not wanted, and the supervisord after this one must not start it.
        (self._folder / "programs" / f"{name}.json").unlink(missing_ok=True)
        with suppress(rpc.Down):
            self._call("removeProcessGroup", name, ok=(rpc.BAD_NAME,))

    def _wait_for_end(self, chosen: dict[str, settings.Spec]) -> set[str]:
        began = time.monotonic()
        killed: set[str] = set()
        left = set(chosen)
        while True:
            known = self._call("getAllProcessInfo")
            stopping = {info["name"] for info in known if info["state"] == _STOPPING}
            waited = time.monotonic() - began
            # supervisord does the killing, after just this time; the answer here only tells it.
            killed |= {name for name in left - stopping if waited >= chosen[name].stop_wait_s}
            left &= stopping
            if not left:
                return killed
            if waited > max(one.stop_wait_s for one in chosen.values()) + 20:
                raise NotReady(f"these services did not stop: {', '.join(sorted(left))}")
            time.sleep(0.05)

    def _drop(self, known: settings.Spec) -> None:
        self._stop([known.name])
        with suppress(rpc.Down):
            self._call("removeProcessGroup", known.name, ok=(rpc.BAD_NAME,))

    def _note(self, name: str) -> Path:
        return self._folder / "programs" / f"{name}.tries"

    def _tries(self, name: str) -> launch.Tries:
        return launch.tries(self._note(name))

    def _state(self, name: str, info: dict[str, Any]) -> ServiceState:
        phase = _PHASES.get(int(info["state"]), Phase.FAILED)
        # What supervisord sees of one that waits, or was given up, is its launcher.
        tries = self._tries(name) if phase.up or phase is Phase.FAILED else launch.Tries()
        if tries.given_up:
            since = time.time() - (launch.clock() - tries.given_up)
            return ServiceState(Phase.FAILED, since=since, why=tries.why())
        if phase.up and tries.waits():
            phase = Phase.WAITING
        began = info["start"] if phase.up and phase is not Phase.WAITING else info["stop"]
        return ServiceState(
            phase=phase,
            pid=int(info["pid"]) or None,
            since=float(began) or None,
            exit=int(info["exitstatus"]) if phase is Phase.ENDED else None,
            why=line(str(info["spawnerr"])),
        )

    def _wanted(self) -> set[str]:
        try:
            note = json.loads(durable.read_private(self._folder / "wanted.json"))
            return set(note["names"]) if note["boot"] == _boot() else set()
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return set()

    def _want(self, names: set[str]) -> None:
        if names != self._wanted() and self._folder.is_dir():
            note = {"boot": _boot(), "names": sorted(names)}
            durable.write(self._folder / "wanted.json", json.dumps(note).encode())


def _boot() -> str:
    """Return what tells this start of the machine from others; a container's is its first process's start."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    started = Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{boot} {started}"


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
        return text.rpartition(")")[2].split()[0] == "Z"
    return True
