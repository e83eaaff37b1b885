"""The engine for where gVisor does not run: bubblewrap's namespaces, and a seccomp allowlist.

As root, bubblewrap itself runs as the agent's own host uid, so nothing inside is the host's root. A command is run
inside by entering from without (enter.py) and not by asking a process inside to start it: the host then depends on
nobody there for a status, a signal or an end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from troupe_tasks import durable, process
from troupe_tasks.errors import NotReady, SandboxFailed, SandboxGone, StateUnreadable, ToolFailed
from troupe_tasks.paths import Paths
from troupe_tasks.resources import guest_dir
from troupe_tasks.sandbox.capsule import enter as entering
from troupe_tasks.sandbox.capsule import launch, seccomp
from troupe_tasks.sandbox.capsule import saved as keeping
from troupe_tasks.sandbox.capsule.engine import BASE_ENV, Entry, Running
from troupe_tasks.sandbox.capsule.saved import AGENT_UID, Saved, disk
from troupe_tasks.sandbox.protocol import EGRESS_DIR, GUEST_DIR, Isolation
from troupe_tasks.text import line

_DEADLINE_S = 15.0
_ENTER_FAILED = 125
_CHILD = re.compile(rb'"child-pid": ?([0-9]{1,9})')

# Descriptors 8 and 9 are bubblewrap's status and the filter; both are closed before anything inside begins.
_DETACH = """\
status=$1 filter=$2 log=$3; shift 3
setsid "$@" 8>"$status" 9<"$filter" </dev/null >/dev/null 2>"$log" &
"""
_INIT = 'exec "$@" </dev/null >/dev/null 2>&1'


class _Run(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pid: int
    start_ticks: int
    boot: str
    started_at: datetime


class Namespaces:
    """bubblewrap, one process tree a sandbox."""

    isolation = Isolation.NAMESPACES

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def check(self) -> None:
        """Raise NotReady when bubblewrap or the seccomp profile is missing, or user namespaces are refused."""
        seccomp.compile_profile()
        command: list[str | Path] = [
            "bwrap",
            "--unshare-all",
            "--ro-bind",
            "/",
            "/",
            "--cap-drop",
            "ALL",
            "true",
        ]
        if os.geteuid() == 0:
            command = [*_become(65534), *command]
        try:
            process.run(command, deadline_s=_DEADLINE_S)
        except ToolFailed as error:
            raise NotReady(
                "bubblewrap can't make namespaces for an ordinary user here", cause=str(error),
                hint="Ubuntu's AppArmor may forbid it: `troupe doctor` tells it apart and gives the remedy.",
            ) from None  # fmt: skip

    def runs(self) -> dict[str, Running]:
        """Return every run on record; whether it lives is in /proc."""
        found: dict[str, Running] = {}
        for sandbox_id in keeping.folders(self._paths):
            run = self._run(sandbox_id)
            if run is not None:
                found[sandbox_id] = Running(_lives(run), run.started_at)
        return found

    def start(self, saved: Saved, folder: Path, groups: tuple[Path, ...]) -> None:
        """Start bubblewrap, detached, and note which process is the first inside."""
        sources = launch.Places(saved.spec.image, disk(self._paths, saved), saved.spec.egress, guest_dir())
        mapped = saved.uid_base is not None
        inside = launch.private(launch.anchor(sources)) if mapped else sources
        bundle = durable.make_private_dir(folder / "bundle")
        durable.write(bundle / "seccomp.bpf", seccomp.compile_profile())
        status, log = bundle / "status", bundle / "log"
        for file in (status, log):
            file.unlink(missing_ok=True)
        command: list[str | Path] = ["sh", "-c", _DETACH, "sh", status, bundle / "seccomp.bpf", log]
        command += [*(_become(saved.host_uid) if mapped else []), *_bwrap(saved, inside)]
        done = launch.launch(
            command, groups=groups, sources=sources if mapped else None, deadline_s=_DEADLINE_S
        )
        pid = self._first_pid(status, log) if done.status == 0 else None
        if pid is None:
            words = (log.read_bytes()[-2000:] if log.exists() else b"") or done.stderr
            raise SandboxFailed(
                f"the sandbox {saved.spec.id} did not start", cause=line(words.strip()[-300:])
            )
        run = _Run(pid=pid, start_ticks=entering.start_ticks(pid), boot=_boot(), started_at=datetime.now(UTC))
        durable.write(folder / "run.json", run.model_dump_json().encode())

    def _first_pid(self, status: Path, log: Path) -> int | None:
        end = time.monotonic() + _DEADLINE_S
        while time.monotonic() < end:
            if status.exists() and (match := _CHILD.search(status.read_bytes())):
                # bubblewrap names it before all is set up; what enters before that lands in half a sandbox.
                name = _name(int(match[1]))
                if name != "bwrap":
                    return int(match[1]) if name else None
            if log.exists() and log.stat().st_size:
                return None
            time.sleep(0.005)
        return None

    def ask_to_end(self, saved: Saved, *, deadline_s: float) -> None:
        """Send TERM to the first process, which passes it on, and wait for it."""
        run = self._run(saved.spec.id)
        end = time.monotonic() + deadline_s
        if run is not None and _lives(run):
            with suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGTERM)
            while _lives(run) and time.monotonic() < end:
                time.sleep(0.02)

    def clear(self, sandbox_id: str) -> None:
        """Kill bubblewrap and the first process, with which the kernel ends all others inside."""
        try:
            mark = keeping.load(self._paths, sandbox_id).identity.encode()
        except SandboxGone:
            return
        except StateUnreadable:  # then its run tells which processes are its own, or an ordinary user's disk
            mark = os.fsencode(self._paths.sandbox(sandbox_id) / "disk" / "state")
        end = time.monotonic() + _DEADLINE_S
        while pids := self._pids(sandbox_id, mark):
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > end:
                raise SandboxFailed(
                    f"processes of {sandbox_id} did not end when killed", cause=f"pid {pids[0]}"
                )
            time.sleep(0.01)
        durable.remove_tree(self._paths.sandbox(sandbox_id) / "run.json")

    def enter(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, report: bool, tty: bool
    ) -> Entry:
        """Return enter.py with all it must know; its report is a word from the child just before its program."""
        handle = os.memfd_create("troupe-exec") if report else None
        run = self._run(saved.spec.id)
        folder = self._paths.sandbox(saved.spec.id)
        wanted = {
            "pid": run.pid if run and _lives(run) else 0,
            "start_ticks": run.start_ticks if run else 0,
            "groups": [str(group) for group in keeping.groups(self._paths, saved.spec.id)],
            "uid": AGENT_UID, "host_uid": saved.host_uid, "cwd": cwd, "env": dict(env), "argv": list(argv),
            "open_files": saved.spec.sizes.open_files, "processes": saved.spec.sizes.processes,
            "seccomp": str(folder / "bundle" / "seccomp.bpf"), "report_fd": handle, "tty": tty,
        }  # fmt: skip
        return Entry([sys.executable, "-I", "-S", entering.__file__, json.dumps(wanted)], handle)

    def hold(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, folder: Path
    ) -> list[str]:
        """Return the same as for a short command: it passes signals on itself."""
        del folder
        return self.enter(saved, argv, env=env, cwd=cwd, report=False, tty=False).argv

    def own_failure(self, status: int, stderr: bytes, *, began: bool) -> int | str:
        """Return the status, or the last line of enter.py when the command never began."""
        if began or status != _ENTER_FAILED:
            return status
        return line((stderr.strip().splitlines() or [b""])[-1], 300)

    def pids(self, saved: Saved) -> tuple[int, ...]:
        """Return bubblewrap's processes and everything in the namespace that they made."""
        return self._pids(saved.spec.id, saved.identity.encode())

    def _pids(self, sandbox_id: str, mark: bytes) -> tuple[int, ...]:
        run = self._run(sandbox_id)
        every = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        own = {int(entry.name) for entry in every if _is_bwrap(entry, mark)}
        if run is not None and _lives(run):
            spaces = {_pid_space(run.pid)}
        else:  # not noted, or badly: the first process is bubblewrap's child
            spaces = {_pid_space(int(entry.name)) for entry in every if own and _parent(entry) in own}
        spaces -= {None, _pid_space(os.getpid())}
        return tuple(sorted(own | {int(one.name) for one in every if _pid_space(int(one.name)) in spaces}))

    def _run(self, sandbox_id: str) -> _Run | None:
        try:
            return _Run.model_validate_json(
                durable.read_private(self._paths.sandbox(sandbox_id) / "run.json")
            )
        except (FileNotFoundError, StateUnreadable, ValidationError):
            return None


def _become(host_uid: int) -> list[str | Path]:
    return ["setpriv", f"--reuid={host_uid}", f"--regid={host_uid}", "--clear-groups", "--no-new-privs", "--"]


def _is_bwrap(entry: Path, mark: bytes) -> bool:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
        return Path(os.fsdecode(words[0])).name == "bwrap" and mark in words and not _is_zombie(entry)
    except OSError:
        return False


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def _pid_space(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _lives(run: _Run) -> bool:
    try:
        return (
            run.boot == _boot()
            and entering.start_ticks(run.pid) == run.start_ticks
            and not _is_zombie(Path(f"/proc/{run.pid}"))
        )
    except OSError:
        return False


def _name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _bwrap(saved: Saved, places: launch.Places) -> list[str | Path]:
    sizes = saved.spec.sizes
    env = [
        word for name, value in {**BASE_ENV, **saved.spec.env}.items() for word in ("--setenv", name, value)
    ]
    limits = [
        f"--nofile={sizes.open_files}:{sizes.open_files}",
        f"--nproc={sizes.processes}:{sizes.processes}",
    ]
    return [
        "bwrap", "--unshare-all", "--uid", str(AGENT_UID), "--gid", str(AGENT_UID), "--cap-drop", "ALL",
        "--hostname", saved.spec.id[:63], "--as-pid-1", "--json-status-fd", "8", "--seccomp", "9",
        "--clearenv", *env, "--setenv", "TROUPE_SANDBOX", saved.identity,
        "--ro-bind", places.image, "/",
        "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
        "--perms", "1777", "--size", str(max(16, sizes.memory_mib // 2) << 20), "--tmpfs", "/tmp",
        "--bind", places.disk / "state", "/state", "--bind", places.disk / "workspace", "/workspace",
        "--ro-bind", places.egress, EGRESS_DIR, "--ro-bind", places.guest, GUEST_DIR, "--chdir", "/",
        "/bin/sh", "-c", _INIT, "sh", "/usr/bin/prlimit", *limits, "--core=0:0",
        "/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/init.py",
    ]  # fmt: skip
