"""Carry bytes both ways between an agent and a host, until both ends are done or nothing moves."""

from __future__ import annotations

import asyncio
import contextlib

from troupe_tasks.egress.verdict import Cut
from troupe_tasks.egress.wire import Wire


async def carry(client: Wire, upstream: Wire, *, first: bytes) -> None:
    """Serve one CONNECT; first is what the agent sent before it had its answer. Raises Cut."""
    await upstream.write(first)
    ways = {
        asyncio.create_task(_one_way(client, upstream)),
        asyncio.create_task(_one_way(upstream, client)),
    }
    try:
        moved = -1
        while ways:
            done, ways = await asyncio.wait(
                ways, timeout=client.limits.quiet_s, return_when=asyncio.FIRST_COMPLETED
            )
            for way in done:
                way.result()
            before, moved = moved, client.received_bytes + upstream.received_bytes
            if ways and not done and moved == before:
                raise Cut("nothing moved for too long")
    finally:
        for way in ways:
            way.cancel()
            with contextlib.suppress(asyncio.CancelledError, Cut):
                await way


async def _one_way(source: Wire, sink: Wire) -> None:
    while data := await source.read():
        await sink.write(data)
    with contextlib.suppress(OSError):
        if sink.writer.can_write_eof():
            sink.writer.write_eof()
