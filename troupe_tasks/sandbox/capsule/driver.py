"""The capsule driver: one protocol over two engines; which one a sandbox has is written down when it is made."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from troupe_tasks import durable, process
from troupe_tasks.errors import (
    NotReady,
    SandboxFailed,
    SandboxGone,
    StateUnreadable,
    ToolFailed,
    ToolTimeout,
    TroupeError,
)  # fmt: skip
from troupe_tasks.host import cgroups
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.capsule import saved as keeping
from troupe_tasks.sandbox.capsule.engine import BASE_ENV, Engine, Running
from troupe_tasks.sandbox.capsule.saved import Saved
from troupe_tasks.sandbox.commands import Commands
from troupe_tasks.sandbox.protocol import (
    GUEST_DIR,
    WORKSPACE,
    Isolation,
    LimitReport,
    Listing,
    SandboxInfo,
    SandboxSpec,
    Sizes,
    State,
    not_running,
)  # fmt: skip
from troupe_tasks.sandbox.stream import Flow, Pumped, pump, refuse_cut

OVERHEAD_MIB = 128  # the engine's own processes, beside what the agent was given
_REAP_S = 20.0
_READY_S = 60.0  # after a machine restart every agent starts at once
_GATEWAY_MARK = "gateway"
_REAPER = ("/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/reap.py")


class Capsule(Commands):
    """Sandboxes of this user, on this machine, by the given engines, the strongest first."""

    name = "capsule"

    def __init__(self, paths: Paths, engines: Sequence[Engine]) -> None:
        self._paths = paths
        self._engines = {engine.isolation: engine for engine in engines}

    def isolation(self) -> Isolation:
        """Return the isolation of the strongest engine that works here."""
        return self._strongest().isolation

    def limits(self) -> tuple[LimitReport, ...]:
        """Return which sizes bind here."""
        bound = cgroups.binding()
        root = os.geteuid() == 0
        missing = "no control group that this user may make: a systemd user session delegates one"
        by_group = [
            LimitReport(resource=name, binds=name in bound, how="control group" if name in bound else missing)
            for name in ("memory", "cpus")
        ]
        disk_how = (
            "an ext4 image of its own" if root else "plain folders: only root can mount a disk of its own"
        )
        return (
            *by_group,
            LimitReport(resource="processes", binds=True, how="RLIMIT_NPROC"),
            LimitReport(resource="open_files", binds=True, how="RLIMIT_NOFILE"),
            LimitReport(resource="storage", binds=root, how=disk_how),
        )

    def list(self) -> Listing:
        """Return every sandbox: the folders are troupe's, the runtime says which of them run."""
        runs, complete = self._all_runs()
        found: list[SandboxInfo] = []
        for sandbox_id in keeping.folders(self._paths):
            try:
                saved = keeping.load(self._paths, sandbox_id)
            except StateUnreadable:
                runs = {at: run for at, run in runs.items() if at[1] != sandbox_id}
                found.append(_unreadable(sandbox_id))
                continue
            except SandboxGone:
                complete = False
                continue
            found.append(self._info(saved, runs.pop((saved.isolation, sandbox_id), None)))
        strangers = [
            SandboxInfo(
                name=name, id=None, identity=f"{isolation.value}:{name}", sizes=None, isolation=isolation,
                state=State.RUNNING if run.alive else State.BROKEN, started_at=run.started_at,
            )
            for (isolation, name), run in runs.items()
        ]  # fmt: skip
        return Listing(complete=complete, sandboxes=(*found, *strangers))

    def create(self, spec: SandboxSpec) -> str:
        """Make the disk and write down the rest; nothing runs yet."""
        with contextlib.suppress(SandboxGone):
            saved = keeping.load(self._paths, spec.id)
            keeping.save_new(self._paths, spec, saved.isolation)  # refuses another plan
            keeping.make_disk(self._paths, saved)
            return saved.identity
        saved = keeping.save_new(self._paths, spec, self._strongest().isolation)
        keeping.make_disk(self._paths, saved)
        return saved.identity

    def start(self, sandbox_id: str) -> None:
        """Start the sandbox's processes on the disk it has."""
        saved, engine = self._open(sandbox_id)
        if not keeping.has_disk(self._paths, saved):
            raise SandboxGone(
                f"the sandbox {sandbox_id} has no disk", hint="Run the interrupted create again."
            )
        run = engine.runs().get(sandbox_id)
        if run is not None and run.alive:
            return
        self._clear(sandbox_id, engine)
        keeping.check_image(saved.spec.image)
        # Its parent is private, so only a sandbox that it is mounted into can come through here.
        durable.make_private_dir(saved.spec.egress)
        saved.spec.egress.chmod(0o711)
        folder = self._paths.sandbox(sandbox_id)
        sizes = saved.spec.sizes
        limits = cgroups.Limits(
            memory_mib=sizes.memory_mib + OVERHEAD_MIB, cpus=sizes.cpus, processes=sizes.processes * 4 + 256
        )
        groups = keeping.make_groups(self._paths, saved, limits)
        try:
            engine.start(saved, folder, groups)
            self._wait_until_ready(sandbox_id)
        except BaseException:
            self._clear(sandbox_id, engine)
            raise

    def stop(self, sandbox_id: str, *, deadline_s: float) -> None:
        """Ask the first process to end, and end everything at the deadline."""
        try:
            saved, engine = self._open(sandbox_id)
        except StateUnreadable:
            self._clear(sandbox_id, *self._engines.values())
            return
        try:
            alive = self._alive(engine, sandbox_id)
        except (SandboxFailed, ToolFailed, ToolTimeout):  # a runtime that can't list it may still end it
            alive = True
        if alive:
            engine.ask_to_end(saved, deadline_s=deadline_s)
        self._clear(sandbox_id, engine)

    def remove(self, sandbox_id: str) -> None:
        """End what runs and remove the folder with the disk."""
        if not self._paths.sandbox(sandbox_id).is_dir():
            return
        try:
            engines: tuple[Engine, ...] = (self._open(sandbox_id)[1],)
        except SandboxGone:  # killed before its file was written: nothing can have run
            engines = ()
        except StateUnreadable:  # whichever ran it
            engines = tuple(self._engines.values())
        self._clear(sandbox_id, *engines)
        keeping.forget(self._paths, sandbox_id)

    def attach(
        self,
        sandbox_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = WORKSPACE,
    ) -> int:
        """Give the terminal to a command inside."""
        saved, engine = self._open(sandbox_id)
        if not self._alive(engine, sandbox_id):
            raise not_running(sandbox_id)
        term = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
        inside = self._env(saved, {**term, **(env or {})})
        entry = engine.enter(saved, argv, env=inside, cwd=cwd, report=False, tty=True)
        return process.terminal(entry.argv)

    def gateway_argv(self, sandbox_id: str, argv: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
        """Return the host command that a supervisor becomes."""
        saved, engine = self._open(sandbox_id)
        inside = [*_REAPER, _GATEWAY_MARK, *argv]
        folder = self._paths.sandbox(sandbox_id)
        return engine.hold(saved, inside, env=self._env(saved, env), cwd=WORKSPACE, folder=folder)

    def sizes(self, sandbox_id: str) -> Sizes:
        """Return a sandbox's sizes."""
        return keeping.load(self._paths, sandbox_id).spec.sizes

    def forget_image(self, image: Path) -> None:
        """Do nothing: a capsule runs on the image itself."""

    def pids(self, sandbox_id: str) -> tuple[int, ...]:
        """Return the host's processes of a sandbox."""
        saved, engine = self._open(sandbox_id)
        return tuple(sorted({*engine.pids(saved), *cgroups.pids(keeping.groups(self._paths, sandbox_id))}))

    def disk_used_mib(self, sandbox_id: str, *, may_ask: bool = True) -> int:  # noqa: ARG002 - nobody is asked
        """Return what a sandbox's disk takes on the host."""
        return keeping.used_mib(self._paths, keeping.load(self._paths, sandbox_id))

    def _strongest(self) -> Engine:
        reasons: list[NotReady] = []
        for engine in self._engines.values():
            try:
                engine.check()
            except NotReady as error:
                reasons.append(error)
                continue
            return engine
        raise NotReady(
            "no way of running a capsule works here", cause="; ".join(map(str, reasons)),
            hint=" ".join(dict.fromkeys(error.hint for error in reasons)),
        )  # fmt: skip

    def _open(self, sandbox_id: str) -> tuple[Saved, Engine]:
        saved = keeping.load(self._paths, sandbox_id)
        if saved.isolation not in self._engines:
            raise NotReady(f"{sandbox_id} was made with {saved.isolation.value}, which this driver has not")
        return saved, self._engines[saved.isolation]

    def _all_runs(self) -> tuple[dict[tuple[Isolation, str], Running], bool]:
        runs: dict[tuple[Isolation, str], Running] = {}
        complete = True
        for isolation, engine in self._engines.items():
            try:
                runs |= {(isolation, name): run for name, run in engine.runs().items()}
            except TroupeError:
                complete = False
        return runs, complete

    def _info(self, saved: Saved, run: Running | None) -> SandboxInfo:
        state = State.STOPPED if keeping.has_disk(self._paths, saved) else State.BROKEN
        alive = run is not None and run.alive
        return SandboxInfo(
            name=saved.spec.id, id=saved.spec.id, identity=saved.identity, state=State.RUNNING if alive else state,
            sizes=saved.spec.sizes, isolation=saved.isolation, started_at=run.started_at if run and alive else None,
        )  # fmt: skip

    def _alive(self, engine: Engine, sandbox_id: str) -> bool:
        run = engine.runs().get(sandbox_id)
        return run is not None and run.alive

    def _wait_until_ready(self, sandbox_id: str) -> None:
        """Wait until the way to the broker is open inside; a command before that would be refused for nothing."""
        flow = Flow(deadline_s=_READY_S, cap_bytes=1024)
        self._exec(sandbox_id, [*_REAPER[:3], "-c", _READY], flow, env=None, cwd="/")

    def _clear(self, sandbox_id: str, *engines: Engine) -> None:
        for engine in engines:
            engine.clear(sandbox_id)
        keeping.remove_groups(self._paths, sandbox_id)

    def _env(self, saved: Saved, extra: Mapping[str, str] | None) -> dict[str, str]:
        return {**BASE_ENV, **saved.spec.env, **(extra or {})}

    def _exec(
        self, sandbox_id: str, argv: Sequence[str], flow: Flow, *, env: Mapping[str, str] | None, cwd: str
    ) -> Pumped:
        saved, engine = self._open(sandbox_id)
        mark = secrets.token_hex(8)
        inside = {**self._env(saved, env), "TROUPE_RUN": mark}
        entry = engine.enter(saved, argv, env=inside, cwd=cwd, report=True, tty=False)
        try:
            pumped = pump(entry.start(), flow)
        except BaseException:
            self._reap(saved, engine, mark)
            raise
        finally:
            began = entry.close()
        if pumped.late or pumped.over:
            self._reap(saved, engine, mark)
        refuse_cut(pumped, sandbox_id, flow)
        told = engine.own_failure(pumped.status, pumped.stderr, began=began)
        if (
            isinstance(told, str)
            or pumped.status < 0
            or (pumped.status >= 128 and not self._alive(engine, sandbox_id))
        ):
            if not self._alive(engine, sandbox_id):
                raise not_running(sandbox_id)
            raise SandboxFailed(f"the sandbox {sandbox_id} did not run the command", cause=str(told))
        return Pumped(**{**pumped.__dict__, "status": told})

    def _reap(self, saved: Saved, engine: Engine, mark: str) -> None:
        """End what a command left behind inside: killing the host's side of it does not."""
        entry = engine.enter(saved, [*_REAPER, mark], env=BASE_ENV, cwd="/", report=False, tty=False)
        with contextlib.suppress(TroupeError):
            pump(entry.start(), Flow(deadline_s=_REAP_S, cap_bytes=1024))


def _unreadable(sandbox_id: str) -> SandboxInfo:
    """Return the entry of a sandbox whose own file does not read: it is there, and can't be started."""
    return SandboxInfo(
        name=sandbox_id,
        id=sandbox_id,
        identity="",
        state=State.BROKEN,
        sizes=None,
        isolation=None,
        started_at=None,
    )


_READY = """\
import socket, time
while True:
    try:
        socket.create_connection(("127.0.0.1", 3128), 5).close()
        break
    except OSError:
        time.sleep(0.01)
"""
