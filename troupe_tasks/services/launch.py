"""Become a service's program, once no orphan of it is left and its pause is over.

The supervisor starts this file by itself, without troupe's package, for it must be quick and leave nothing
behind: it takes the service's kernel lock, which the program it becomes holds for life. A lock that is held
means that an earlier supervisor was killed and its program lives on: that one is stopped first, so there
are never two.

The supervisor restarts a program that ended after it counted as started at once, for ever. So each start is noted
here: the next one waits, longer each time, and after too many within a time there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

_GRACE_S = 10.0
_KILLED_S = 5.0
_BUSY = 75
_GIVEN_UP = 76


class Tries(NamedTuple):
    """When a service was started lately, until when its next start waits, when it was given up: by the boot clock."""

    starts: tuple[float, ...] = ()
    until: float = 0.0
    given_up: float = 0.0

    def why(self) -> str:
        """Say in words why it was given up."""
        span_s = self.given_up - self.starts[0] if self.starts else 0
        return f"it ended too quickly too often: {len(self.starts)} times within {span_s:.0f} s"

    def waits(self) -> bool:
        """Tell whether the next start is put off."""
        return self.until > clock()


def clock() -> float:
    """Return the seconds since the machine's start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tries(note: Path) -> Tries:
    """Return what is noted of a service's starts; a note that is not there, or not whole, says nothing."""
    try:
        starts, until, given_up = json.loads(note.read_bytes())
        return Tries(tuple(map(float, starts)), float(until), float(given_up))
    except (OSError, ValueError, TypeError):
        return Tries()


def _note(path: Path, what: Tries) -> bool:
    """Note what is known of a service's starts, and tell whether there was room to."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, json.dumps(what).encode())
        finally:
            os.close(handle)
        beside.replace(path)
    except OSError:
        return False
    return True


def _hold_back(note: Path, *, pauses_s: list[int], limit_s: int) -> None:
    """Wait until the next start is due; raise SystemExit when there were too many."""
    # Nothing was started yet, so a stop ends this at once, without a word. What nohup had the command that started
    # supervisord ignore is not for its services.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    found, now = tries(note), clock()
    if found.given_up:
        sys.exit(_GIVEN_UP)
    recent = tuple(start for start in found.starts if now - limit_s < start <= now)
    if len(recent) > len(pauses_s):
        over = Tries(recent, given_up=now)
        sys.stderr.write(f"{note.stem}: {over.why()}; giving up\n")
        _note(note, over)
        sys.exit(_GIVEN_UP)
    pause_s = pauses_s[max(len(recent), 1) - 1] if found.starts and pauses_s else 0
    if _note(note, Tries(recent, until=now + pause_s)):
        time.sleep(pause_s)
    else:
        time.sleep(max(pauses_s, default=0))  # it can't be counted, so there is never any hurry
    _note(note, Tries((*recent, clock())))


def holders(lock: Path) -> list[int]:
    """Return the processes that hold a service's lock file open."""
    if _free(lock):
        return []
    # By name, with plain os calls: a machine may have 100,000 open files, and this is waited for.
    wanted = os.path.realpath(lock)
    found = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and _has_open(pid, wanted)]  # noqa: PTH208
    return found or _takers(lock)


def _takers(lock: Path) -> list[int]:
    """Return the living processes that took the lock, as the kernel's table has them (proc_locks(5)).

    A program that keeps its memory private, as the broker does, shows an ordinary user no open files.
    """
    number, found = str(lock.stat().st_ino), set[int]()
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == number and int(words[4]) > 0:
                found.add(int(words[4]))
    return sorted(pid for pid in found if Path("/proc", str(pid)).exists())


def _free(lock: Path) -> bool:
    """Tell whether nobody holds the lock: reading every process's files is slow, this is not."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _taken(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _taken(handle: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
        return True
    return False


def _taken_soon(handle: int) -> bool:
    """Take the lock for good; whoever only looks at it (`_free`) has it for a moment, and is no orphan."""
    for _ in range(10):
        if _taken(handle, fcntl.LOCK_EX):
            return True
        time.sleep(0.02)
    return False


def _has_open(pid: str, wanted: str) -> bool:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}") == wanted:  # noqa: PTH115
                    return True
    return False


def end_holders(lock: Path, grace_s: float = _GRACE_S) -> bool:
    """Stop the processes that hold the lock, asking first, and tell whether none is left."""
    for asked, wait_s in ((signal.SIGINT, grace_s), (signal.SIGKILL, _KILLED_S)):
        until = time.monotonic() + wait_s
        for pid in holders(lock):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, asked)
        while not _free(lock):
            if time.monotonic() >= until:
                break
            time.sleep(0.05)
        else:
            return True
    return False


def main(name: str) -> NoReturn:
    """Become the program that programs/NAME.json describes; the working folder is the supervisor's."""
    os.umask(0o077)
    lock = Path("programs", f"{name}.lock")
    # Read-only, and inherited on purpose: whoever has it can at most keep it.
    handle = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o400)
    if not _taken_soon(handle):
        os.close(handle)
        sys.stderr.write(f"{name}: an orphan of an earlier supervisor still runs; stopping it\n")
        if not end_holders(lock):
            sys.exit(_BUSY)
        main(name)
    os.set_inheritable(handle, True)
    spec = json.loads(Path("programs", f"{name}.json").read_bytes())
    _hold_back(Path("programs", f"{name}.tries"), pauses_s=spec["pauses_s"], limit_s=spec["limit_s"])
    os.chdir("/")
    os.execve(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - that is the point


if __name__ == "__main__":
    main(sys.argv[1])
