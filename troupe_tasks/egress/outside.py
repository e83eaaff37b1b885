"""Get out of the machine: resolve a name here, judge every address, connect to a judged one.

Nothing between the judging and the connecting resolves again, so an answer that turns private in between
changes nothing. lookup, judge and trust are parameters so that tests can have a network of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from troupe_tasks.egress import address, tls
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.target import Target
from troupe_tasks.egress.verdict import Refusal

_TRIED = 4  # addresses of one name
_RECALL_S = 5.0
_RECALLED = 512  # names
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def lookup(host: str, port: int) -> list[str]:
    """Return a name's addresses in the system's order; blocks."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@functools.cache
def trust(speaks_h2: bool) -> ssl.SSLContext:  # noqa: FBT001 - a cached function's arguments are its key
    """Return what checks a host's certificate: the system's authorities, and the name."""
    return tls.client_context(["h2", "http/1.1"] if speaks_h2 else ["http/1.1"])


@dataclass(frozen=True)
class Outside:
    """The way out. refuse_own keeps connections from coming back to one of this machine's own addresses."""

    pool: ThreadPoolExecutor
    lookup: Callable[[str, int], list[str]] = lookup
    judge: Callable[[str], str] = address.why_refused
    trust: Callable[[bool], ssl.SSLContext] = trust
    refuse_own: bool = True
    recent: dict[str, tuple[float, list[str]]] = field(default_factory=dict)

    async def reach(self, place: Target, *, slots: asyncio.Semaphore, limits: Limits) -> Streams:
        """Connect to a place and return its streams, or raise a Refusal."""
        found = [place.host] if place.is_address else await self._resolve(place, slots=slots, limits=limits)
        for one in found:
            if why := self.judge(one):
                raise Refusal(403, "address", f"{place.host} leads to an address that is {why}")
        try:
            async with asyncio.timeout(limits.connect_s):
                return await self._connect(found[:_TRIED], place.port, limits=limits)
        except TimeoutError:
            raise Refusal(504, "unreachable", f"no connection within {limits.connect_s:g} s") from None

    async def _resolve(self, place: Target, *, slots: asyncio.Semaphore, limits: Limits) -> list[str]:
        if found := self._recalled(place):
            return found
        try:
            async with asyncio.timeout(limits.connect_s):
                await slots.acquire()
        except TimeoutError:
            raise Refusal(503, "busy", "too many names are being resolved at once") from None
        if found := self._recalled(place):
            slots.release()
            return found
        # The slot is held until the thread is free again, which may be long after the deadline.
        work = asyncio.get_running_loop().run_in_executor(self.pool, self.lookup, place.host, place.port)
        work.add_done_callback(lambda done: _free(slots, done))
        try:
            async with asyncio.timeout(limits.resolve_s):
                found = await asyncio.shield(work)
        except TimeoutError:
            raise Refusal(504, "unreachable", "the name was not resolved in time") from None
        except (OSError, UnicodeError):
            raise Refusal(502, "unreachable", "the name does not resolve") from None
        if not found:
            raise Refusal(502, "unreachable", "the name has no address")
        if len(self.recent) >= _RECALLED:
            self.recent.clear()
        self.recent[place.host] = (time.monotonic() + _RECALL_S, found)
        return found

    def _recalled(self, place: Target) -> list[str]:
        """Return the addresses that a name had a moment ago; they are judged again like fresh ones."""
        until, found = self.recent.get(place.host, (0.0, []))
        return found if time.monotonic() < until else []

    async def _connect(self, addresses: list[str], port: int, *, limits: Limits) -> Streams:
        for one in addresses:
            # An address, not a name: asyncio asks no resolver for it.
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(one, port, limit=limits.chunk_bytes)
                if self.refuse_own and _is_own(writer):
                    writer.transport.abort()
                    raise Refusal(403, "address", "the name leads back to this machine")
                return reader, writer
        raise Refusal(502, "unreachable", "the host does not accept connections")


def _free(slots: asyncio.Semaphore, done: asyncio.Future[list[str]]) -> None:
    slots.release()
    if not done.cancelled():
        done.exception()  # asked for, so that asyncio does not report it as forgotten


def _is_own(writer: asyncio.StreamWriter) -> bool:
    peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    return bool(peer and own and peer[0] == own[0])
