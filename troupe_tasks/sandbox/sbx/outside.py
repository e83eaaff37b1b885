"""This side of a sandbox's way out: holds open the exec whose other end is inside, anew after each end; sends signals.

It runs by its path and loads of the package the tunnel alone, so that little stays in memory beside each sandbox.
An exec would start a sandbox that was stopped, and nearly any command a daemon that was: each is asked about before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [os.path.abspath(f"{__file__}/../../../..")]  # where the package is

from troupe_tasks.sandbox.sbx.tunnel import Broken, Tunnel

_TRIES = 5
_LONG_S = 60.0  # an exec that lived so long does not count against the next one
_PAUSE_S = 2.0
_PATIENCE_S = 180.0  # a daemon that starts anew, or lists nothing for a while, is waited for
_SIGNAL_S = 30.0
_ASK_S = 20.0
_NOT_OURS = {2, 125}  # no program of ours there, or it says that the sandbox is another


class Told(NamedTuple):
    """The sandbox, and the words of the commands: all that troupe tells this program."""

    name: str
    identity: str
    unit: str  # where the daemon's unit is, if it has one
    status: Sequence[str]
    listing: Sequence[str]
    exec: Sequence[str] = ()
    broker: str = ""
    lock: str = ""
    ready: int = -1


def hold(told: Told) -> int:
    """Hold the exec open and connect what comes out of it, until it ends and the sandbox no longer runs."""
    handle = os.open(told.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # there is one already
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    waiting, ends = [told.ready], 0
    while ends < _TRIES:
        began = time.monotonic()
        status = _carry(told, waiting)
        while waiting:  # who waits for a tunnel that did not come up is not kept waiting
            os.close(waiting.pop())
        lived_s = time.monotonic() - began
        ends = 1 if lived_s >= _LONG_S else ends + 1
        if status in _NOT_OURS or not runs(told, _PATIENCE_S):
            return 0
        time.sleep(max(0.0, _PAUSE_S - lived_s))
    print(f"the way out ended {ends} times, none of which lasted", file=sys.stderr)
    return 1


def _carry(told: Told, waiting: list[int]) -> int | None:
    """Carry until the exec ends, and return its status; None when it had to be ended."""
    tunnel: Tunnel | None = None
    child = subprocess.Popen(told.exec, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if child.stdin is None or child.stdout is None:
            return None
        tunnel = Tunnel(child.stdout.fileno(), child.stdin.fileno(), broker=told.broker)
        while not tunnel.over:
            tunnel.turn()
            while tunnel.greeted and waiting:
                with contextlib.suppress(BrokenPipeError):  # a start that was killed waits no more
                    os.write(waiting[0], b"ready\n")
                os.close(waiting.pop())
        return child.wait(2)
    except Broken as error:
        print(f"what came from inside is no tunnel: {error}", file=sys.stderr)
        return None
    except subprocess.TimeoutExpired:
        return None
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if tunnel is not None:
            tunnel.ready.close()
            for channel in list(tunnel.channels.values()):
                tunnel.close(channel)


def runs(told: Told, patience_s: float) -> bool:
    """Tell whether the sandbox runs; one that nobody can tell of is asked about again, until patience is over."""
    end = time.monotonic() + patience_s
    while (found := _runs(told)) is None and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return bool(found)


def _runs(told: Told) -> bool | None:
    """Tell whether the sandbox runs; None where the daemon does not say, or has forgotten it."""
    if os.path.exists(told.unit) and (_asked(told.status) or {}).get("status") != "running":
        return None
    rows = (_asked(told.listing) or {}).get("sandboxes")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    mine = next((row for row in found if row.get("name") == told.name), None)
    if mine is None:
        return None
    return mine.get("id") == told.identity and mine.get("status") == "running"


def _asked(words: Sequence[str]) -> dict[str, object] | None:
    """Return what a command says in JSON; None when it failed."""
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=_ASK_S, check=True, stdin=subprocess.DEVNULL
        )
        found = json.loads(done.stdout[done.stdout.index(b"{") :])
    except (subprocess.SubprocessError, OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def send(told: Told) -> int:
    """Run the exec that sends a signal, if the sandbox runs."""
    if not runs(told, _SIGNAL_S):
        return 1
    return subprocess.run(told.exec, timeout=_ASK_S, check=False, stdin=subprocess.DEVNULL).returncode


def main(argv: list[str]) -> int:
    """Hold the way out open, or send a signal: the first word says which, the second is all it is told."""
    if argv[0] == "send":
        told = json.loads(argv[1])
        return send(Told(**{**told, "exec": told["exec"][argv[2]]}))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return hold(Told(**json.loads(argv[1])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
