"""A terminal for a command under test: what it shows is read as it comes, what a person types is written."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType


class Terminal:
    """One program that owns a pseudo-terminal of its own."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], *, rows: int = 30, columns: int = 100
    ) -> None:
        self._master, slave = os.openpty()
        self.resize(rows, columns)
        self.child = subprocess.Popen(
            list(argv), stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd="/", start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread, one ioctl
        )  # fmt: skip
        os.close(slave)
        self.shown = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(10)
        os.close(self._master)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size, as a person does who drags its window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Write what a person types."""
        os.write(self._master, text.encode())

    def wait_for(self, words: str, *, within_s: float, after: int = 0) -> int:
        """Read until words are shown beyond the first `after` bytes; return how many bytes have been shown by then."""
        until = time.monotonic() + within_s
        while words.encode() not in self.shown[after:]:
            left = until - time.monotonic()
            if left <= 0 or not self._read(left):
                since = self.shown[after:].decode(errors="replace")
                raise AssertionError(
                    f"{words!r} was not shown within {within_s} s, or before the end:\n{since}"
                )
        return len(self.shown)

    def end(self, *, within_s: float) -> int:
        """Read to the program's end and return its status."""
        until = time.monotonic() + within_s
        while time.monotonic() < until and self._read(until - time.monotonic()):
            pass
        return self.child.wait(max(0.1, until - time.monotonic()))

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._master], [], [], wait_s)[0]:
            return True
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the other end any more
            return False
        self.shown += piece
        return bool(piece)
