"""The engine that puts gVisor's own kernel between the agent and the host's.

As root each sandbox has a range of host uids to itself: runsc's two processes run in it and nothing inside is the
host's root. As an ordinary user runsc maps that user alone, to 0 inside, where it holds no capability.
Limits come from the control group that runsc is started in; `--ignore-cgroups` keeps it from making its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from troupe_tasks import durable, process
from troupe_tasks.errors import NotReady, SandboxFailed, ToolTimeout
from troupe_tasks.host.processes import started_at
from troupe_tasks.paths import Paths
from troupe_tasks.resources import guest_dir
from troupe_tasks.sandbox import holding
from troupe_tasks.sandbox.capsule import launch
from troupe_tasks.sandbox.capsule.engine import BASE_ENV, Entry, Running
from troupe_tasks.sandbox.capsule.saved import AGENT_UID, Saved, disk
from troupe_tasks.sandbox.protocol import EGRESS_DIR, GUEST_DIR, Isolation
from troupe_tasks.text import line

_RUNTIME_FAILED = 128  # util.Fatalf's status in runsc
_END = "."
_DEADLINE_S = 30.0
_NOT_FOUND = re.compile(rb"no such file or directory|not found|not a directory")
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")


class _Container(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    pid: int
    status: str


_Containers = TypeAdapter(list[_Container] | None)


def find(paths: Paths) -> Path | None:
    """Return the runsc to use: troupe's own, else the one on PATH."""
    own = paths.tools / "runsc"
    if own.exists():
        return own.resolve()
    found = shutil.which("runsc", path=f"{os.environ.get('PATH', '')}:{process.SYSTEM_PATH}")
    return Path(found).resolve() if found else None


def container(sandbox_id: str) -> str:
    """Return runsc's name of a sandbox.

    runsc takes the beginning of a name for the whole where there is no such one: `delete jane` deletes jane-2 when
    jane is stopped. No ID holds what ours end with, so none of them is the beginning of another.
    """
    return f"{sandbox_id}{_END}"


class Gvisor:
    """gVisor's runsc, in a runtime folder of troupe's own."""

    isolation = Isolation.GVISOR

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._root = paths.run / "runsc"
        self._binary = find(paths)

    def check(self) -> None:
        """Raise NotReady when there is no runsc, or it does not do its work here."""
        from troupe_tasks.sandbox.capsule import probe

        self._flags()
        probe.check(self._paths, self._runsc())

    def runs(self) -> dict[str, Running]:
        """Return every container in troupe's runtime folder."""
        if self._binary is None or not self._root.is_dir():
            return {}
        done = process.run([*self._flags(), "list", "-format", "json"], deadline_s=_DEADLINE_S)
        try:
            containers = _Containers.validate_json(done.stdout.strip() or b"null") or []
        except ValidationError as error:
            raise SandboxFailed("runsc's list does not read", cause=str(error.errors()[0]["msg"])) from None
        return {
            c.id.removesuffix(_END): Running(c.status == "running" and c.pid > 0, started_at(c.pid))
            for c in containers
        }

    def start(self, saved: Saved, folder: Path, groups: tuple[Path, ...]) -> None:
        """Write the bundle and start the container in it."""
        sources = launch.Places(saved.spec.image, disk(self._paths, saved), saved.spec.egress, guest_dir())
        mapped = saved.uid_base is not None
        inside = launch.private(launch.anchor(sources)) if mapped else sources
        bundle = durable.make_private_dir(folder / "bundle")
        durable.write(bundle / "config.json", json.dumps(_config(saved, inside), indent=1).encode())
        durable.make_private_dir(self._root)
        log = bundle / "runsc.log"
        log.unlink(missing_ok=True)
        command: list[str | Path] = [
            *self._flags(),
            f"--log={log}",
            "run",
            "-detach",
            "-bundle",
            bundle,
            container(saved.spec.id),
        ]
        done = launch.launch(
            command, groups=groups, sources=sources if mapped else None, deadline_s=_DEADLINE_S
        )  # fmt: skip
        if done.status != 0:
            words = log.read_bytes()[-2000:] if log.exists() else done.stderr
            # Not mount's advice, where there is its reason.
            rows = [row for row in words.strip().splitlines() if b"dmesg(1)" not in row]
            last = (rows or [b""])[-1]
            raise SandboxFailed(f"the sandbox {saved.spec.id} did not start", cause=line(last, 300))

    def ask_to_end(self, saved: Saved, *, deadline_s: float) -> None:
        """Send TERM to the first process, which passes it on, and wait for that process."""
        process.run(
            [*self._flags(), "kill", container(saved.spec.id), "TERM"], deadline_s=_DEADLINE_S, ok=None
        )
        with contextlib.suppress(ToolTimeout):
            process.run([*self._flags(), "wait", container(saved.spec.id)], deadline_s=deadline_s, ok=None)

    def clear(self, sandbox_id: str) -> None:
        """Delete the container, killing it first if it lives."""
        if self._binary is None or not self._root.is_dir():
            return
        name = container(sandbox_id)
        # A start that was cut may have left its runsc at work, which holds the container's lock.
        self._kill(self._starting(name.encode()))
        done = process.run([*self._flags(), "delete", "-force", name], deadline_s=_DEADLINE_S, ok=None)
        # A start that was cut before runsc wrote its state left these, which runsc's delete knows nothing of, as it
        # does of those whose state does not read; the next start would fail on the socket.
        end = time.monotonic() + _DEADLINE_S
        while pids := self._pids(sandbox_id):
            self._kill(pids)
            if time.monotonic() > end:
                raise SandboxFailed(f"runsc can't delete {sandbox_id}", cause=line(done.stderr[-300:]))
            time.sleep(0.01)
        if done.status != 0:
            for left in [entry for entry in self._root.iterdir() if entry.name.startswith(f"{name}_")]:
                left.unlink(missing_ok=True)
        (self._root / f"runsc-{name}.sock").unlink(missing_ok=True)

    def enter(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, report: bool, tty: bool
    ) -> Entry:
        """Return a runsc exec; its report is the number of the process inside."""
        del tty  # runsc takes its own stdin for a terminal when it is one
        handle = os.memfd_create("troupe-exec") if report else None
        told = f"/proc/self/fd/{handle}" if handle is not None else None
        return Entry(self._exec(saved, argv, env=env, cwd=cwd, pid_file=told), handle)

    def hold(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, folder: Path
    ) -> list[str]:
        """Return a small shell that waits for a runsc exec and signals the process inside."""
        pid_file = folder / "gateway.pid"
        noted = shlex.quote(str(pid_file))
        kill = f'{shlex.join(self._flags())} kill -pid "$(cat {noted})" {container(saved.spec.id)} "$1"'
        return holding.argv(
            self._exec(saved, argv, env=env, cwd=cwd, pid_file=str(pid_file)),
            passing=f"[ -s {noted} ] && {kill}", first=f"rm -f {noted}; trap {shlex.quote(f'rm -f {noted}')} EXIT",
        )  # fmt: skip

    def _exec(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, pid_file: str | None
    ) -> list[str]:
        user = _inside_uid(saved)
        told = ["-internal-pid-file", pid_file] if pid_file else []
        # runsc splits --env at commas, so a value that holds one is set by env(1) inside.
        plain = [
            word for name, value in env.items() if "," not in value for word in ("--env", f"{name}={value}")
        ]
        split = [f"{name}={value}" for name, value in env.items() if "," in value]
        inside = ["/usr/bin/env", *split, *argv] if split else list(argv)
        words = [
            "exec",
            "--user",
            f"{user}:{user}",
            "--cwd",
            cwd,
            *plain,
            *told,
            container(saved.spec.id),
            *inside,
        ]
        return [*self._flags(), *words]

    def own_failure(self, status: int, stderr: bytes, *, began: bool) -> int | str:
        """Tell a command's 128 from runsc's own; a program that is not there is 127 or 126, as in a shell."""
        if status != _RUNTIME_FAILED or began:
            return status
        last = (stderr.strip().splitlines() or [b""])[-1].lower()
        if b"executing processes" in last or b"failed to load" in last:
            if b"permission denied" in last or b"exec format" in last:
                return 126
            if _NOT_FOUND.search(last):
                return 127
        return line(last, 300)

    def pids(self, saved: Saved) -> tuple[int, ...]:
        """Return the sandbox process, and the gofer which is its sibling."""
        return self._pids(saved.spec.id)

    def _pids(self, sandbox_id: str) -> tuple[int, ...]:
        mark, programs = container(sandbox_id).encode(), {b"runsc-sandbox", b"runsc-gofer"}
        return tuple(pid for pid, words in self._processes() if words[0] in programs and mark in words)

    def _starting(self, name: bytes) -> tuple[int, ...]:
        marks = {b"run", b"-detach", name}
        return tuple(pid for pid, words in self._processes() if marks <= set(words))

    def _processes(self) -> Iterator[tuple[int, list[bytes]]]:
        for pid in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()):
            try:
                words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if self._is_mine(words):
                yield pid, words

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_mine(self, words: list[bytes]) -> bool:
        return f"--root={self._root}".encode() in words

    def _runsc(self) -> Path:
        if self._binary is None:
            raise NotReady(
                "gVisor's runsc is not here",
                hint="`troupe create` fetches Debian's build; it needs the network once.",
            )
        return self._binary

    def _flags(self) -> list[str]:
        return flags(self._runsc(), self._root)


def flags(binary: Path, root: Path) -> list[str]:
    """Return the program and its global flags, the same for every command on one runtime folder."""
    rootless = ["--rootless"] if os.geteuid() != 0 else []
    return [
        str(binary), f"--root={root}", *rootless, "--network=none", "--platform=systrap", "--host-uds=open",
        "--overlay2=none", "--ignore-cgroups",
    ]  # fmt: skip


def _inside_uid(saved: Saved) -> int:
    return AGENT_UID if saved.uid_base is not None else 0


def _bind(source: Path, destination: str, *, writable: bool) -> dict[str, Any]:
    options = ["rbind", "rw" if writable else "ro", "nosuid", "nodev"]
    return {"destination": destination, "type": "bind", "source": str(source), "options": options}


def _config(saved: Saved, places: launch.Places) -> dict[str, Any]:
    """Return the bundle's config.json (OCI runtime specification 1.0)."""
    sizes, uid = saved.spec.sizes, _inside_uid(saved)
    limits = {"RLIMIT_NOFILE": sizes.open_files, "RLIMIT_NPROC": sizes.processes, "RLIMIT_CORE": 0}
    tmp = ["nosuid", "nodev", "mode=1777", f"size={max(16, sizes.memory_mib // 2)}m"]
    namespaces = [{"type": kind} for kind in _NAMESPACES]
    linux: dict[str, Any] = {"namespaces": namespaces}
    if saved.uid_base is not None:
        namespaces.append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": saved.uid_base, "size": 65536}]
        linux |= {"uidMappings": mapping, "gidMappings": mapping}
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": uid, "gid": uid},
            "args": ["/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/init.py"],
            "env": [f"{name}={value}" for name, value in {**BASE_ENV, **saved.spec.env}.items()],
            "cwd": "/",
            "capabilities": {kind: [] for kind in kinds},
            "rlimits": [{"type": kind, "hard": most, "soft": most} for kind, most in limits.items()],
            "noNewPrivileges": True,
        },
        "root": {"path": str(places.image), "readonly": True},
        "hostname": saved.spec.id[:63],
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": tmp},
            _bind(places.disk / "state", "/state", writable=True),
            _bind(places.disk / "workspace", "/workspace", writable=True),
            _bind(places.egress, EGRESS_DIR, writable=False),
            _bind(places.guest, GUEST_DIR, writable=False),
        ],
        "linux": linux,
    }
