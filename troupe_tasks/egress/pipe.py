"""One side of a connection as bytes: bounded buffers, deadlines, and a count of what crossed it.

`Plain` is a pair of asyncio streams; `tls.Sealed` is the same thing inside TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.verdict import Cut

_LINGER_S = 2.0


class Pipe(Protocol):
    """Bytes both ways; received_bytes and sent_bytes count what the layer above read and wrote."""

    limits: Limits
    received_bytes: int
    sent_bytes: int

    async def read(self) -> bytes:
        """Return the next bytes, none at the end; raises Cut when the other side broke the connection."""

    def put(self, data: bytes) -> None:
        """Queue bytes in order, without waiting; whoever puts much waits for drained()."""

    async def drained(self) -> None:
        """Wait until the other side keeps up; raises Cut when it does not."""

    def queued_bytes(self) -> int:
        """Return how much is queued."""

    def end(self) -> None:
        """End the sending side."""

    def abort(self) -> None:
        """Drop the connection and what is still unsent."""

    def close(self) -> None:
        """Close the connection once what is queued is sent."""


async def write(pipe: Pipe, data: bytes) -> None:
    """Send bytes and wait until the other side keeps up; raises Cut when it does not."""
    if data:
        pipe.put(data)
        await pipe.drained()


async def linger(pipe: Pipe) -> None:
    """End the sending side, and drop for a moment what still comes.

    Closing a socket with unread bytes resets it, which takes the last answer away (RFC 9112, section 9.6).
    """
    with contextlib.suppress(Cut, TimeoutError):
        pipe.end()
        async with asyncio.timeout(_LINGER_S):
            while await pipe.read():
                pass


class Plain:
    """A connection as the kernel has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, limits: Limits) -> None:
        self._reader, self._writer, self._early = reader, writer, b""
        self._has_ended = False
        self.limits = limits
        self.received_bytes = 0
        self.sent_bytes = 0
        writer.transport.set_write_buffer_limits(high=limits.chunk_bytes)
        # asyncio reads up to 256 KiB at once whatever the reader's limit; streams that nobody reads would hold it.
        writer.transport.max_size = limits.chunk_bytes  # type: ignore[attr-defined]

    async def read(self) -> bytes:
        """Return the next bytes, none at the end; raises Cut when the other side broke the connection."""
        if self._early:
            data, self._early = self._early, b""
        else:
            try:
                data = await self._reader.read(self.limits.chunk_bytes)
            except OSError as error:
                raise Cut("the connection was reset") from error
        self.received_bytes += len(data)
        return data

    def unread(self, data: bytes) -> None:
        """Give back bytes that belong to another layer, which reads them first."""
        self._early = data
        self.received_bytes -= len(data)

    def put(self, data: bytes) -> None:
        """Queue bytes; none are sent after end(), nor once the connection is gone, which drained() tells."""
        if data and not self._has_ended and not self._writer.transport.is_closing():
            self.sent_bytes += len(data)
            self._writer.write(data)

    async def drained(self) -> None:
        """Wait until the other side keeps up; raises Cut when it does not."""
        if not self.queued_bytes() and not self._writer.transport.is_closing():
            return  # as nearly always, and a deadline costs more than the rest
        try:
            async with asyncio.timeout(self.limits.stuck_s):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise Cut("the other side is gone or takes nothing") from error

    def queued_bytes(self) -> int:
        """Return how much the kernel has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def end(self) -> None:
        """End the sending side."""
        self._has_ended = True
        with contextlib.suppress(OSError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    def abort(self) -> None:
        """Drop the connection and what is still unsent."""
        self._writer.transport.abort()

    def close(self) -> None:
        """Close the connection once what is queued is sent."""
        self._writer.close()
