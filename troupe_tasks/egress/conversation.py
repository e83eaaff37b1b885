"""One connection of one agent, from its first request to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import h11

from troupe_tasks.egress import exchange, headers, tunnel
from troupe_tasks.egress.audit import AuditLog, Entry
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.outside import Outside, Streams
from troupe_tasks.egress.policy import EgressPolicy, decide
from troupe_tasks.egress.target import Target
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.egress.wire import Wire
from troupe_tasks.host import sockets


@dataclass
class Conversation:
    """Serve one connection; policy is asked at each request, since it may change in between."""

    client: Wire
    policy: Callable[[], EgressPolicy]
    audit: AuditLog
    outside: Outside
    lookups: asyncio.Semaphore
    rehearsal: Path
    limits: Limits
    # Where the request under way goes, so that a policy that narrows can end it.
    going: tuple[Target, bool] | None = field(default=None, init=False)

    async def run(self) -> None:
        """Serve request after request until either side has enough; close the connection."""
        try:
            while await self._one():
                self.client.http.start_next_cycle()
            await self.client.linger()
        except Cut:
            self.client.abort()
        finally:
            self.client.writer.close()

    async def _one(self) -> bool:
        """Serve one request and tell whether the connection can carry another."""
        received, sent = self.client.received_bytes, self.client.sent_bytes
        if not await self._awaits_request():
            return False
        entry, began = Entry(), time.monotonic()
        try:
            return await self._serve(entry)
        except Refusal as refusal:
            entry.status, entry.verdict, entry.why = refusal.status, refusal.verdict, refusal.why
            await self._answer(refusal)
            return False
        except (Cut, TimeoutError, h11.ProtocolError) as error:
            entry.verdict, entry.why = "cut", str(error)
            raise Cut(str(error)) from error
        except asyncio.CancelledError:
            entry.verdict, entry.why = "cut", "the broker ended it"
            raise
        finally:
            self.going = None
            entry.sent_bytes = self.client.received_bytes - received
            entry.received_bytes = self.client.sent_bytes - sent
            self.audit.write(entry, ms=(time.monotonic() - began) * 1000)

    async def _awaits_request(self) -> bool:
        """Wait for the first byte of a request; nobody is told when none comes."""
        if self.client.http.trailing_data[0]:
            return True
        try:
            async with asyncio.timeout(self.limits.idle_s):
                data = await self.client.read()
        except TimeoutError:
            return False
        self.client.http.receive_data(data)
        return bool(data)

    async def _serve(self, entry: Entry) -> bool:
        request = await self._head()
        entry.method = request.method.decode("ascii", "replace")
        entry.host = _as_spoken(request.target)
        place = headers.wanted(request, limits=self.limits)
        entry.host, entry.port = place.host, place.port
        by_tunnel = request.method == b"CONNECT"
        grant = decide(self.policy(), place, tunnel=by_tunnel)
        entry.rule, entry.origin = grant.rule, grant.origin
        self.going = (place, by_tunnel)
        reader, writer = await (self._rehearse() if grant.rehearsal else self._reach(place))
        upstream = Wire(reader, writer, role=h11.CLIENT, limits=self.limits)
        try:
            if by_tunnel:
                await self._tunnel(upstream, entry)
                return False
            await exchange.carry(self.client, upstream, request=request, place=place, entry=entry)
        finally:
            upstream.abort()
        return self.client.http.our_state is h11.DONE and self.client.http.their_state is h11.DONE

    async def _head(self) -> h11.Request:
        try:
            async with asyncio.timeout(self.limits.head_s):
                event = await self.client.next(self.limits.head_s)
        except TimeoutError:
            raise Refusal(408, "protocol", "the request's headers did not come in time") from None
        except h11.RemoteProtocolError as error:
            raise Refusal(error.error_status_hint, "protocol", "not a request this proxy reads") from None
        if not isinstance(event, h11.Request):
            raise Cut("hung up in the middle of a request")
        return event

    async def _reach(self, place: Target) -> Streams:
        return await self.outside.reach(place, slots=self.lookups, limits=self.limits)

    async def _rehearse(self) -> Streams:
        try:
            with sockets.short_name(self.rehearsal) as name:
                async with asyncio.timeout(self.limits.connect_s):
                    return await asyncio.open_unix_connection(name, limit=self.limits.chunk_bytes)
        except (OSError, TimeoutError):
            raise Refusal(502, "unreachable", "the rehearsal model is not running") from None

    async def _tunnel(self, upstream: Wire, entry: Entry) -> None:
        await self.client.next(self.limits.head_s)  # the end of a request without a body
        entry.status = 200
        await self.client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        first, closed = self.client.http.trailing_data
        if not closed:
            await tunnel.carry(self.client, upstream, first=first)

    async def _answer(self, refusal: Refusal) -> None:
        """Say why, in a line that shows nothing but our own words, and hang up."""
        body = json.dumps(
            {"error": {"message": f"troupe: {refusal.why}", "type": f"egress_{refusal.verdict}"}}
        )
        data = body.encode() + b"\n"
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
            (b"connection", b"close"),
        ]
        with contextlib.suppress(h11.LocalProtocolError):
            await self.client.send(h11.Response(status_code=refusal.status, headers=fields))
            await self.client.send(h11.Data(data=data))
            await self.client.send(h11.EndOfMessage())


def _as_spoken(target: bytes) -> str:
    """Return what a request calls its host, for the log of one that is refused before it is understood."""
    text = target.decode("ascii", "backslashreplace").partition("://")
    place = re.split(r"[/?#]", text[2] or text[0], maxsplit=1)[0]
    return place.rpartition("@")[2]
