"""Carry bytes both ways between an agent and a host, until both ends are done or nothing moves."""

from __future__ import annotations

import asyncio
import contextlib

from troupe_tasks.egress import pipe as pipes
from troupe_tasks.egress.pipe import Pipe
from troupe_tasks.egress.verdict import Cut


async def carry(client: Pipe, upstream: Pipe, *, up: bytes = b"", down: bytes = b"") -> None:
    """Serve one tunnel; up and down are what came before both sides had agreed on it. Raises Cut."""
    await pipes.write(upstream, up)
    await pipes.write(client, down)
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


async def _one_way(source: Pipe, sink: Pipe) -> None:
    while data := await source.read():
        await pipes.write(sink, data)
    sink.end()
