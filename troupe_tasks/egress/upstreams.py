"""The connections to one host that one tunnel of an agent uses: kept between requests, verified, few."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import h11

from troupe_tasks.egress.desk import Desk
from troupe_tasks.egress.h1side import H1Answering
from troupe_tasks.egress.h2side import H2Answering, HostLink
from troupe_tasks.egress.outside import Streams
from troupe_tasks.egress.pipe import Plain
from troupe_tasks.egress.target import Target
from troupe_tasks.egress.tls import Sealed
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.egress.wire import Wire

_SPARE = 8  # idle connections kept, of a host that speaks HTTP/1.1 to an agent that speaks HTTP/2


class Upstreams:
    """The way to one host; it speaks HTTP/2 there only if the agent does and the host can."""

    def __init__(self, place: Target, *, desk: Desk) -> None:
        self._place, self._desk = place, desk
        self._first: Streams | None = None
        self._speaks_h2 = False
        self._idle: dict[Wire, asyncio.Task[None]] = {}
        self._links: list[HostLink] = []
        self._connecting = asyncio.Lock()
        self._open: set[Wire | HostLink] = set()

    async def prepare(self) -> None:
        """Open the first connection, so that a host out of reach is told before any TLS; raises Refusal."""
        await self._admit()
        try:
            self._first = await self._reach()
        except BaseException:
            self._desk.upstreams.release()
            raise

    def speak(self, *, h2: bool) -> None:
        """Say which protocol the agent speaks."""
        self._speaks_h2 = h2

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[H1Answering | H2Answering]:
        """Yield a connection, or a stream of one, for one exchange; raises Refusal when there is none."""
        answering = await self._take()
        try:
            yield answering
        finally:
            if isinstance(answering, H2Answering):
                answering.close()
            elif answering.can_go_on() and len(self._idle) < _SPARE:
                self._idle[answering.wire] = asyncio.create_task(self._watch(answering.wire))
            else:
                self._shut(answering.wire)

    def close(self) -> None:
        """End every connection; nothing is waited for, so that no cancellation can come in between."""
        for watch in self._idle.values():
            watch.cancel()
        self._idle.clear()
        for one in list(self._open):
            self._shut(one)
        if self._first is not None:
            self._first[1].transport.abort()
            self._first = None
            self._desk.upstreams.release()

    async def _take(self) -> H1Answering | H2Answering:
        if not self._speaks_h2:
            return H1Answering(await self._kept() or self._wire(await self._connect()), keeps=True)
        async with self._connecting:  # the first connection tells which protocol the host speaks
            for link in self._links:
                if link.has_room():
                    return H2Answering(link)
            for link in [link for link in self._links if link.is_ending and not link.leases]:
                self._links.remove(link)
                self._shut(link)
            sealed = await self._connect()
            if sealed.protocol != "h2":
                self._speaks_h2 = False
                return H1Answering(self._wire(sealed), keeps=True)
            link = HostLink(sealed, limits=self._desk.limits)
            self._open.add(link)
            self._links.append(link)
            return H2Answering(link)

    async def _kept(self) -> Wire | None:
        """Return an idle connection that is still good, if there is one."""
        await asyncio.sleep(0)  # let what the kernel knows already reach the watches
        while self._idle:
            wire, watch = self._idle.popitem()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            if watch.cancelled():
                wire.http.start_next_cycle()
                return wire
            self._shut(wire)
        return None

    async def _watch(self, wire: Wire) -> None:
        """Let an idle connection go once its host ends it, or says anything unasked, or after a while."""
        with contextlib.suppress(Cut, TimeoutError):
            async with asyncio.timeout(self._desk.limits.kept_s):
                await wire.pipe.read()
        if self._idle.pop(wire, None) is not None:
            self._shut(wire)

    def _wire(self, sealed: Sealed) -> Wire:
        wire = Wire(sealed, role=h11.CLIENT, limits=self._desk.limits)
        self._open.add(wire)
        return wire

    def _shut(self, one: Wire | HostLink) -> None:
        if one in self._open:
            self._open.remove(one)
            one.abort()
            self._desk.upstreams.release()

    async def _connect(self) -> Sealed:
        """Return a new verified connection, which has a permit; raises Refusal."""
        first, self._first = self._first, None
        if first is not None:
            try:
                return await self._seal(first)
            except Cut:
                first = None  # it was opened early, and the host did not wait: nothing was asked on it yet
            except BaseException:
                self._desk.upstreams.release()
                raise
        else:
            await self._admit()
        try:
            return await self._seal(await self._reach())
        except Cut:
            self._desk.upstreams.release()
            raise Refusal(502, "unreachable", "the host broke the connection") from None
        except BaseException:
            self._desk.upstreams.release()
            raise

    async def _seal(self, streams: Streams) -> Sealed:
        """Agree on TLS with the host; raises Refusal, or Cut when it hangs up before that."""
        limits, plain = self._desk.limits, Plain(*streams, limits=self._desk.limits)
        try:
            context = self._desk.machine.outside.trust(self._speaks_h2)
            sealed = Sealed(plain, context, limits=limits, server_name=self._place.host)
            async with asyncio.timeout(limits.connect_s):
                await sealed.handshake()
        except BaseException as error:
            plain.abort()
            match error:
                case ssl.SSLCertVerificationError():
                    why = f"the host's certificate is not good: {error.verify_message}"
                    raise Refusal(502, "certificate", why) from None
                case ssl.SSLEOFError():
                    raise Cut("the host hung up") from None
                case ssl.SSLError():
                    raise Refusal(502, "certificate", "the host does not agree on TLS 1.2 or newer") from None
                case TimeoutError():
                    raise Refusal(504, "unreachable", "the host does not speak TLS in time") from None
            raise
        return sealed

    async def _reach(self) -> Streams:
        desk = self._desk
        return await desk.machine.outside.reach(self._place, slots=desk.lookups, limits=desk.limits)

    async def _admit(self) -> None:
        """Take a permit for one more connection; raises Refusal."""
        try:
            async with asyncio.timeout(self._desk.limits.connect_s):
                await self._desk.upstreams.acquire()
        except TimeoutError:
            raise Refusal(503, "busy", "too many connections to hosts at once") from None
