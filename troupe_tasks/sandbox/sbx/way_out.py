"""Start and end the tunnel of a sandbox on this side: one small process, which holds a lock as long as it lives."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from troupe_tasks import process
from troupe_tasks.errors import SandboxFailed
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.sbx import calls, inside, outside, restart
from troupe_tasks.sandbox.sbx import saved as keeping
from troupe_tasks.sandbox.sbx.saved import Saved
from troupe_tasks.text import line

_READY_S = 60.0
_END_S = 10.0
_OUTSIDE = (sys.executable, "-I", "-S", outside.__file__)
_DETACH = 'log=$1; shift; setsid "$@" </dev/null >/dev/null 2>"$log" &'


def pid(paths: Paths, sandbox_id: str) -> int | None:
    """Return the tunnel's process, or None when none runs."""
    try:
        handle = os.open(_lock(paths, sandbox_id), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(handle, 20)
        return int(said) if said.isdigit() else None
    finally:
        os.close(handle)
    return None


def start(paths: Paths, saved: Saved) -> None:
    """Have the tunnel up, ready to carry."""
    sandbox_id = saved.spec.id
    if pid(paths, sandbox_id) is not None:
        return
    folder = keeping.place(paths, sandbox_id)
    read, write = os.pipe()
    try:
        told = {
            **asking(saved), "exec": _words(inside.way_out(saved)), "ready": write,
            "broker": str(saved.spec.egress / "broker.sock"), "lock": str(_lock(paths, sandbox_id)),
        }  # fmt: skip
        log = folder / "tunnel.log"
        argv: list[str | Path] = ["sh", "-c", _DETACH, "sh", log, *_OUTSIDE, "hold", json.dumps(told)]
        process.run(argv, deadline_s=30, env=calls.environment(), pass_fds=(write,))
        os.close(write)
        write = -1
        if not _says_ready(read):
            stop(paths, sandbox_id)
            words = log.read_bytes()[-2000:] if log.exists() else b""
            last = (words.strip().splitlines() or [b""])[-1]
            raise SandboxFailed(f"the way out of {sandbox_id} did not open", cause=line(last, 300))
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def _says_ready(read: int) -> bool:
    ready, _, _ = select.select([read], [], [], _READY_S)
    return bool(ready) and os.read(read, 16) == b"ready\n"


def asking(saved: Saved) -> dict[str, object]:
    """Return what outside.py needs to ask whether a sandbox runs."""
    return {
        "name": saved.name, "identity": saved.identity, "unit": str(restart.UNIT_FILE),
        "status": _words(["daemon", "status", "--json"]), "listing": _words(["ls", "--json"]),
    }  # fmt: skip


def sending(saved: Saved) -> list[str]:
    """Return the command, but for its last word, that sends the gateway inside the signal of that name."""
    told = {
        **asking(saved),
        "exec": {name: _words(inside.send_signal(saved, name)) for name in ("INT", "TERM")},
    }
    return [*_OUTSIDE, "send", json.dumps(told)]


def stop(paths: Paths, sandbox_id: str) -> None:
    """End the tunnel and the exec that it holds; none there is fine."""
    end = time.monotonic() + _END_S
    while (found := pid(paths, sandbox_id)) is not None:
        with suppress(ProcessLookupError):
            os.killpg(found, signal.SIGKILL)
        if time.monotonic() > end:
            raise SandboxFailed(
                f"the way out of {sandbox_id} did not close when killed", cause=f"pid {found}"
            )
        time.sleep(0.01)


def _lock(paths: Paths, sandbox_id: str) -> Path:
    return keeping.place(paths, sandbox_id) / "tunnel.lock"


def _words(words: list[str]) -> list[str]:
    return [str(calls.binary()), *words]
