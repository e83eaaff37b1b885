"""Every cap and deadline on bytes that go into and come out of a sandbox."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, BinaryIO

from troupe_tasks.errors import SandboxFailed, SandboxTimeout

_CHUNK = 1 << 20  # as much as an unprivileged pipe may hold (fs.pipe-max-size)
_STDERR_CAP = 65536


@dataclass(frozen=True)
class Flow:
    """What goes into a program and comes out of it, how much either way, and how long it takes at most.

    A bulk transfer ends at its cap; of any other command what is past it is dropped. stall_s is the longest time in
    which no byte may move, not even on stderr.
    """

    deadline_s: float
    cap_bytes: int
    source: BinaryIO | bytes = b""
    sink: Kept | BinaryIO | None = None
    bulk: bool = False
    stall_s: float | None = None


@dataclass(frozen=True)
class Pumped:
    """How a pumped program ended; `over`: a cap of a bulk transfer was met; `late`: a deadline; `stuck`: stall_s."""

    status: int
    stderr: bytes
    bytes: int
    sha256: str
    truncated: bool
    late: bool
    stuck: bool
    over: bool


def refuse_cut(pumped: Pumped, sandbox_id: str, flow: Flow) -> None:
    """Raise SandboxFailed for a transfer that met its cap, SandboxTimeout for one that a deadline ended."""
    if pumped.over:
        raise SandboxFailed(
            f"a transfer with {sandbox_id} went past its cap of {flow.cap_bytes} bytes; it was stopped"
        )
    if pumped.late:
        what, limit_s = ("moved nothing", flow.stall_s) if pumped.stuck else ("did not end", flow.deadline_s)
        raise SandboxTimeout(f"a command in {sandbox_id} {what} within {limit_s:g} s; it was stopped")


def _widen(pipe: IO[bytes]) -> None:
    # A wider pipe means fewer wake-ups on both sides; a user over the system's quota of pipes keeps the usual one.
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK)


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep data."""
        self._chunks.append(data)
        return len(data)

    def value(self) -> bytes:
        """Return everything kept."""
        return b"".join(self._chunks)


class _Feed:
    """The bytes that go in, from memory or from a file, one chunk ahead."""

    def __init__(self, source: BinaryIO | bytes, cap_bytes: int) -> None:
        self._source = source
        self._view = memoryview(source) if isinstance(source, bytes) else memoryview(b"")
        self._left = cap_bytes
        self.over = False

    def next(self) -> memoryview:
        """Return what to write now; empty at the end."""
        if not self._view and not isinstance(self._source, bytes):
            chunk = self._source.read(_CHUNK)
            self.over = len(chunk) > self._left
            self._left -= len(chunk)
            self._view = memoryview(b"" if self.over else chunk)
        return self._view

    def took(self, count: int) -> None:
        """Note that count bytes were written."""
        self._view = self._view[count:]


def pump(child: subprocess.Popen[bytes], flow: Flow, *, awaited: bytes = b"") -> Pumped:
    """Move bytes in and out of a program until it ends, the cap of a bulk transfer is met, or a deadline passes.

    Nothing is read from the source or given to the program before it has said awaited on stderr. The program has pipes
    for stdin, stdout and stderr; it is killed with its group in all cases but the first.
    """
    job = _Pump(child, flow, awaited)
    try:
        return job.run(time.monotonic() + flow.deadline_s, flow.stall_s or flow.deadline_s)
    finally:
        job.close()


class _Pump:
    def __init__(self, child: subprocess.Popen[bytes], flow: Flow, awaited: bytes) -> None:
        self._child, self._flow, self._awaited = child, flow, awaited
        self._left = flow.cap_bytes
        self._feed = _Feed(flow.source, flow.cap_bytes)
        self._digest, self._count = hashlib.sha256(), 0
        self._stderr = bytearray()
        self._truncated = self._over = self._late = self._stuck = False
        self._ready = selectors.DefaultSelector()
        for pipe, event in (
            (child.stdin, selectors.EVENT_WRITE),
            (child.stdout, selectors.EVENT_READ),
            (child.stderr, selectors.EVENT_READ),
        ):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                if flow.bulk:
                    _widen(pipe)
                if pipe is not child.stdin or not awaited:
                    self._ready.register(pipe, event)

    def run(self, deadline: float, stall_s: float) -> Pumped:
        while self._ready.get_map() and not self._over:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._late = True
                break
            events = self._ready.select(min(left_s, stall_s))
            if not events and stall_s < left_s:
                self._late = self._stuck = True
                break
            for key, _events in events:
                self._step(key.fileobj)
        if not self._late and not self._over:
            try:
                self._child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._late = True
        if self._late or self._over:
            self._kill()
        return Pumped(
            status=self._child.wait(), stderr=bytes(self._stderr), bytes=self._count,
            sha256=self._digest.hexdigest(), truncated=self._truncated, late=self._late, stuck=self._stuck,
            over=self._over,
        )  # fmt: skip

    def _step(self, pipe: object) -> None:
        if pipe is self._child.stdin:
            self._write(self._child.stdin)
        elif pipe is self._child.stdout:
            self._read(self._child.stdout)
        elif pipe is self._child.stderr:
            chunk = self._take(self._child.stderr)
            self._truncated = self._truncated or len(self._stderr) + len(chunk) > _STDERR_CAP
            self._stderr += chunk[: _STDERR_CAP - len(self._stderr)]
            if self._awaited and self._awaited in self._stderr and self._child.stdin is not None:
                self._awaited = b""
                self._ready.register(self._child.stdin, selectors.EVENT_WRITE)

    def _write(self, pipe: IO[bytes] | None) -> None:
        if pipe is None:
            return
        view = self._feed.next()
        self._over = self._over or self._feed.over
        if not view:
            self._done(pipe)
            return
        try:
            self._feed.took(os.write(pipe.fileno(), view[:_CHUNK]))
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command ended without reading all of it, as `head` does
            self._done(pipe)

    def _read(self, pipe: IO[bytes] | None) -> None:
        chunk = self._take(pipe)
        kept = chunk[: self._left]
        if len(kept) < len(chunk):
            self._truncated = True
            self._over = self._over or self._flow.bulk
        self._left -= len(kept)
        self._count += len(kept)
        self._digest.update(kept)
        if self._flow.sink is not None and kept:
            self._flow.sink.write(kept)

    def _take(self, pipe: IO[bytes] | None) -> bytes:
        if pipe is None:
            return b""
        try:
            chunk = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self._done(pipe)
        return chunk

    def _done(self, pipe: IO[bytes]) -> None:
        self._ready.unregister(pipe)
        with contextlib.suppress(BrokenPipeError):
            pipe.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """End what is left, whatever ended the pumping (Ctrl-C too)."""
        if self._child.poll() is None:
            self._kill()
            self._child.wait()
        self._ready.close()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
