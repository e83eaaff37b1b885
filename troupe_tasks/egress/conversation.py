"""One connection of one agent to its proxy: plain requests, tunnels, and tunnels that are looked into."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable

import h11

from troupe_tasks.egress import asked, exchange, standins, tunnel
from troupe_tasks.egress.audit import Entry
from troupe_tasks.egress.desk import Desk
from troupe_tasks.egress.h1side import H1Answering, H1Asking
from troupe_tasks.egress.messages import Head
from troupe_tasks.egress.outside import Streams
from troupe_tasks.egress.pipe import Plain
from troupe_tasks.egress.policy import EgressPolicy, decide
from troupe_tasks.egress.target import Target
from troupe_tasks.egress.turns import Turns
from troupe_tasks.egress.verdict import Refusal
from troupe_tasks.egress.wire import Wire
from troupe_tasks.host import sockets


class Conversation:
    """Serve one connection."""

    def __init__(self, client: Plain, *, desk: Desk) -> None:
        self._client, self._desk = client, desk
        self._wire = Wire(client, role=h11.SERVER, limits=desk.limits)
        # Where the request under way goes, by a tunnel or not, looked into or not.
        self._going: tuple[Target, bool, bool] | None = None

    async def run(self) -> None:
        """Serve request after request until either side has enough; close the connection."""
        await Turns(self._wire, self._serve, desk=self._desk).run()

    def is_granted(self, policy: EgressPolicy) -> bool:
        """Tell whether a changed policy still lets through what is under way, in the same way."""
        if self._going is None:
            return True
        place, by_tunnel, looked_into = self._going
        try:
            decide(policy, place, tunnel=by_tunnel)
        except Refusal:
            return False
        return looked_into == (by_tunnel and policy.ends_tls(place))

    async def _serve(self, request: h11.Request, asking: H1Asking, entry: Entry) -> bool:
        try:
            return await self._one(request, asking, entry)
        finally:
            self._going = None

    async def _one(self, request: h11.Request, asking: H1Asking, entry: Entry) -> bool:
        entry.method = request.method.decode("ascii", "replace")
        entry.host = _as_spoken(request.target)
        place = asked.wanted(request, limits=self._desk.limits)
        entry.host, entry.port = place.host, place.port
        by_tunnel, policy = request.method == b"CONNECT", self._desk.policy()
        grant = decide(policy, place, tunnel=by_tunnel)
        entry.rule, entry.origin = grant.rule, grant.origin
        looked_into = by_tunnel and policy.ends_tls(place)
        self._going = (place, by_tunnel, looked_into)
        if looked_into:
            await self._look_into(place, entry)
        elif by_tunnel:
            async with self._reached(self._reach(place)) as upstream:
                await self._agree(entry)
                await tunnel.carry(self._client, upstream)
        else:
            await self._plainly(request, place, asking, entry, rehearsal=grant.rehearsal)
            return asking.can_go_on()
        return False

    async def _plainly(
        self, request: h11.Request, place: Target, asking: H1Asking, entry: Entry, *, rehearsal: bool
    ) -> None:
        ask = asked.plainly(request, place)
        # No key is ever put into plain HTTP, so no stand-in has any business there.
        found = self._desk.machine.stand_ins.seen(ask)
        standins.judge(found, self._desk.policy().id, at_home=frozenset())

        def answered(head: Head) -> Head:
            entry.status = head.status
            return head

        async with self._reached(self._rehearse() if rehearsal else self._reach(place)) as upstream:
            wire = Wire(upstream, role=h11.CLIENT, limits=self._desk.limits)
            answering = H1Answering(wire, keeps=False)
            await exchange.begin(answering, ask)
            await exchange.relay(asking, answering, answered=answered)

    async def _look_into(self, place: Target, entry: Entry) -> None:
        from troupe_tasks.egress.ended import Ended
        from troupe_tasks.egress.upstreams import Upstreams

        upstreams = Upstreams(place, desk=self._desk)
        try:
            await upstreams.prepare()
            await self._agree(entry)
            await Ended(place, desk=self._desk, upstreams=upstreams).run(self._client, entry)
        finally:
            upstreams.close()

    @contextlib.asynccontextmanager
    async def _reached(self, reaching: Awaitable[Streams]) -> AsyncIterator[Plain]:
        """Yield a connection of this request's own, and end it."""
        plain = Plain(*await reaching, limits=self._desk.limits)
        try:
            yield plain
        finally:
            plain.abort()

    async def _reach(self, place: Target) -> Streams:
        outside = self._desk.machine.outside
        return await outside.reach(place, slots=self._desk.lookups, limits=self._desk.limits)

    async def _rehearse(self) -> Streams:
        limits = self._desk.limits
        try:
            with sockets.short_name(self._desk.machine.rehearsal) as name:
                async with asyncio.timeout(limits.connect_s):
                    return await asyncio.open_unix_connection(name, limit=limits.chunk_bytes)
        except (OSError, TimeoutError):
            raise Refusal(502, "unreachable", "the rehearsal model is not running") from None

    async def _agree(self, entry: Entry) -> None:
        """Answer a CONNECT; what the agent sent before it had its answer belongs to the tunnel."""
        await self._wire.next(self._desk.limits.head_s)  # the end of a request without a body
        entry.status = 200
        await self._wire.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        self._client.unread(bytes(self._wire.http.trailing_data[0]))


def _as_spoken(target: bytes) -> str:
    """Return what a request calls its host, for the log of one that is refused before it is understood."""
    text = target.decode("ascii", "backslashreplace").partition("://")
    place = re.split(r"[/?#]", text[2] or text[0], maxsplit=1)[0]
    return place.rpartition("@")[2]
