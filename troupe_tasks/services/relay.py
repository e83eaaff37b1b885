"""Start a service's program and write down what it prints, safe to read and never too much.

Keepers start this file by path, in front of a program that prints what others chose; it stays in memory beside it,
so it imports nothing but the rule of troupe_tasks/text.py. Every line reaches the log escaped. Over-long lines are
cut and floods counted, so that neither memory nor disk can be filled; the program itself is never made to wait for
the log. It ends as the program ended: with its status, or 128 and the number of the signal that ended it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

if __name__ == "__main__":  # by path and isolated, so nobody has said where the package is
    sys.path.append(os.path.abspath(f"{__file__}/../../.."))  # noqa: PTH100 - pathlib is a tenth of the memory

from troupe_tasks.text import escape

LINE_BYTES = 16 << 10
BURST_BYTES = 1 << 20
RATE_BYTES_S = 64 << 10
_HELD_BYTES = 1 << 20  # what waits for a slow keeper
_READ_BYTES = 64 << 10
_WRITE_BYTES = 4096  # pipe(7): a pipe that takes something takes this much without blocking
_LAST_BYTES = 8 << 10  # of what is left out, the end is kept: it may say why the program ended
_DRAIN_S = 2.0
_OUT = 1
_GROUP, _ALONE = "group", "alone"
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def before(argv: tuple[str, ...], *, whole_group: bool) -> tuple[str, ...]:
    """Return a program's words with the relay's before them.

    whole_group: the keeper's signals reach the program, too; else the relay passes them on.
    """
    return (sys.executable, "-I", "-S", __file__, _GROUP if whole_group else _ALONE, *argv)


class _Log:
    """What goes into the log: lines, escaped, within a budget of bytes a second that a pause fills up again."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._over = 0  # bytes of this line that were not kept
        self._budget = float(BURST_BYTES)
        self._filled = time.monotonic()
        self._shut = False
        self._left_out = 0
        self._last = b""
        self._held = bytearray()
        self._stands_for = 0  # as many of the program's bytes are in what is held
        self._torn = False
        self._gone = False

    def take(self, data: bytes) -> None:
        """Note what the program printed."""
        if self._may_write():
            self._tell_left_out()
            self._accept(data)
        else:
            known = self._last + data
            self._last = known[-_LAST_BYTES:]
            self._left_out += len(known) - len(self._last)

    def _accept(self, data: bytes) -> None:
        self._stands_for += len(data)
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = bytes(self._line) + whole[0]
            lines = [_shown(whole[0], self._over), *map(_shown, whole[1:]), ""]
            self._line.clear()
            self._over = 0
            self._put("\n".join(lines))
        kept = rest[: LINE_BYTES - len(self._line)]
        self._line += kept
        self._over += len(rest) - len(kept)
        if self._budget <= 0:
            self._end_line()
            self._shut = True

    def wait_s(self) -> float | None:
        """Return after how long something left out may be told of, or None."""
        return 1.0 if (self._left_out or self._last) and not self._gone else None

    def wants_out(self) -> bool:
        """Tell whether something waits to be written."""
        return bool(self._held)

    def tell(self) -> None:
        """Say how much was left out, if it may be said by now."""
        if self._may_write():
            self._tell_left_out()

    def finish(self) -> None:
        """Note that the program prints no more."""
        self._tell_left_out()
        self._end_line()

    def write(self) -> None:
        """Write what the keeper takes without waiting; on a full disk, or without a keeper, it is left out."""
        while self._held and select.select([], [_OUT], [], 0)[1]:
            try:
                del self._held[: os.write(_OUT, self._held[:_WRITE_BYTES])]
            except BlockingIOError:
                return
            except OSError as error:
                self._gone = isinstance(error, BrokenPipeError)
                self._torn = True
                self._left_out += self._stands_for
                self._held.clear()
        if not self._held:
            self._stands_for = 0

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._budget = min(BURST_BYTES, self._budget + (now - self._filled) * RATE_BYTES_S)
        self._filled = now
        # Once shut, shut for about a second: else a flood would be a note for every few bytes.
        self._shut = self._shut and self._budget < RATE_BYTES_S
        return not (self._shut or self._gone) and len(self._held) < _HELD_BYTES

    def _put(self, text: str) -> None:
        data = text.encode()
        self._budget -= len(data)
        self._held += data

    def _end_line(self) -> None:
        if self._line or self._over:
            self._put(f"{_shown(bytes(self._line), self._over)}\n")
            self._line.clear()
            self._over = 0

    def _tell_left_out(self) -> None:
        last, self._last = self._last, b""
        if self._left_out:
            cut = last.find(b"\n") + 1  # none: it is one long line
            self._left_out, last = self._left_out + cut, last[cut:]
            start = "\n" if self._torn else ""
            self._put(f"{start}… {self._left_out} bytes left out\n")
            self._stands_for += self._left_out
            self._left_out, self._torn = 0, False
        self._accept(last)


def _shown(line: bytes, over: int = 0) -> str:
    more = len(line) + over - LINE_BYTES
    return escape(line[:LINE_BYTES]) + (f"… ({more} more bytes)" if more > 0 else "")


class _Program:
    """The program, by a handle that no other process can take over."""

    def __init__(self, *, whole_group: bool) -> None:
        self._whole_group = whole_group
        self._early: list[int] = []
        self._handle = -1
        self._ended = False
        for number in _PASSED_ON:
            signal.signal(number, self._asked)

    def start(self, argv: list[str]) -> tuple[int, int]:
        """Start it and return the pipe of its output, and its handle, which can be read once it has ended."""
        out, its_out = os.pipe()
        ends = [(os.POSIX_SPAWN_DUP2, its_out, 1), (os.POSIX_SPAWN_DUP2, its_out, 2)]
        # Python ignores these two, and a program started would, too.
        plain = (signal.SIGPIPE, signal.SIGXFSZ)
        self._pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=ends, setsigdef=plain)
        # The rest is the program's alone: its keeper's lock is to be found with the program, not here.
        os.closerange(3, out)
        os.closerange(out + 1, 256)
        self._handle = os.pidfd_open(self._pid)
        for number in self._early:
            signal.pidfd_send_signal(self._handle, number)
        return out, self._handle

    def status(self) -> int:
        """Return how it ended, once it has."""
        self._ended = True  # from here on nobody is left to be signalled
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return code if code >= 0 else 128 - code

    def _asked(self, number: int, _frame: object) -> None:
        if self._handle < 0:
            self._early.append(number)
        elif not (self._whole_group or self._ended):
            signal.pidfd_send_signal(self._handle, number)


def main(signals: str, *argv: str) -> int:
    """Run a program to its end and return its status."""
    program, log = _Program(whole_group=signals == _GROUP), _Log()
    try:
        out, handle = program.start(list(argv))
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    sources = [out, handle]
    status, until = 0, float("inf")
    # What it started may hold its pipe for ever, so that is not waited for.
    while sources and time.monotonic() < until:
        wait_s = log.wait_s() if until == float("inf") else max(0.0, until - time.monotonic())
        ready, _, _ = select.select(sources, [_OUT] if log.wants_out() else [], [], wait_s)
        if out in ready:
            data = os.read(out, _READ_BYTES)
            log.take(data)
            if not data:
                sources.remove(out)
                os.close(out)
        if handle in ready:
            status, until = program.status(), time.monotonic() + _DRAIN_S
            sources.remove(handle)
        if not ready:
            log.tell()
        log.write()
    log.finish()
    until = time.monotonic() + _DRAIN_S
    while log.wants_out() and (left_s := until - time.monotonic()) > 0:
        select.select([], [_OUT], [], left_s)
        log.write()
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
