"""The two sides of an exchange over HTTP/2: an agent that asks, and a host that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import h2.errors
import h2.events
import h2.exceptions
from hpack import NeverIndexedHeaderTuple

from troupe_tasks.egress import headers
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.link import Fields, Link, Stream
from troupe_tasks.egress.messages import Ask, End, Head, Piece
from troupe_tasks.egress.pipe import Pipe
from troupe_tasks.egress.verdict import Cut, Refusal

_NO_ERROR = h2.errors.ErrorCodes.NO_ERROR


class AgentLink(Link):
    """An agent's HTTP/2 connection: each stream is served by a task of its own, which ends with it."""

    def __init__(
        self, pipe: Pipe, *, serve: Callable[[H2Asking], Coroutine[None, None, None]], limits: Limits
    ) -> None:
        window_bytes, idle_s = limits.agent_window_bytes, limits.idle_s
        super().__init__(pipe, client_side=False, window_bytes=window_bytes, idle_s=idle_s, limits=limits)
        self._serve = serve
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def on_event(self, event: h2.events.Event) -> None:
        """Start a task for a new request."""
        if not isinstance(event, h2.events.RequestReceived):
            super().on_event(event)
            return
        stream = Stream(event.stream_id or 0)
        self.add(stream)
        asking = H2Asking(self, stream, event)
        self._tasks[stream.id] = asyncio.get_running_loop().create_task(self._run(asking))

    async def _run(self, asking: H2Asking) -> None:
        try:
            await self._serve(asking)
        finally:
            del self._tasks[asking.stream.id]
            # A request whose answer is complete may not be: NO_ERROR says that the answer stands nevertheless.
            done = asking.stream.has_finished
            self.drop(asking.stream, _NO_ERROR if done else h2.errors.ErrorCodes.INTERNAL_ERROR)

    def on_broken(self, stream: Stream, why: str) -> None:
        """End the task too: there is nobody to answer."""
        super().on_broken(stream, why)
        if task := self._tasks.get(stream.id):
            task.cancel()

    async def ended(self) -> None:
        """Wait until no stream is served any more."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class H2Asking:
    """An agent's side of one exchange; received_bytes and sent_bytes count headers and bodies."""

    def __init__(self, link: AgentLink, stream: Stream, event: h2.events.RequestReceived) -> None:
        self.link, self.stream = link, stream
        self.fields: Fields = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        self.has_body = event.stream_ended is None
        self.received_bytes = headers.size(self.fields)
        self.sent_bytes = 0
        self._has_begun = False

    async def receive(self) -> Piece:
        """Return the next piece of the request's body; raises Cut or TimeoutError."""
        piece = await self.link.receive(self.stream)
        if isinstance(piece, End):
            # Trailers are headers that nobody has judged, and gRPC uses them for answers only.
            return End()
        self.received_bytes += len(piece)
        return piece

    async def gone(self) -> None:
        """Return at once: a stream that the agent gives up cancels the task that serves it."""

    async def answer(self, head: Head) -> None:
        """Begin the answer; raises Cut."""
        self._has_begun = True
        fields = [(b":status", str(head.status).encode()), *head.headers]
        self.link.say(self.stream, fields)
        self.sent_bytes += headers.size(fields)

    async def send(self, piece: Piece) -> None:
        """Send the next piece of the answer; raises Cut."""
        await self.link.send(self.stream, piece)
        self.sent_bytes += headers.size(piece.trailers) if isinstance(piece, End) else len(piece)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer in the host's place, unless an answer began already; raises Cut."""
        if self._has_begun:
            raise Cut(refusal.why)
        body = headers.refusal_body(refusal)
        fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.answer(Head(refusal.status, fields))
        await self.send(body)
        await self.send(End())


class HostLink(Link):
    """A host's HTTP/2 connection, pumped by a task of its own until close()."""

    def __init__(self, pipe: Pipe, *, limits: Limits) -> None:
        window_bytes, idle_s = limits.host_window_bytes, limits.kept_s
        super().__init__(pipe, client_side=True, window_bytes=window_bytes, idle_s=idle_s, limits=limits)
        self.leases = 0
        self.begin()
        self._pumping = asyncio.get_running_loop().create_task(self._pump())

    async def _pump(self) -> None:
        try:
            await self.pump()
        except Cut:
            pass  # each stream has the reason
        finally:
            self.pipe.abort()

    def has_room(self) -> bool:
        """Tell whether the host takes another stream now."""
        return not self.is_ending and self.leases < self.h2.remote_settings.max_concurrent_streams

    def on_event(self, event: h2.events.Event) -> None:
        """Take up answers, and what the host says about its own end."""
        match event:
            case h2.events.ResponseReceived():
                if stream := self.streams.get(event.stream_id or 0):
                    stream.answer = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
                    stream.arrived.set()
            case h2.events.ConnectionTerminated():
                self.is_ending = True
                for stream in list(self.streams.values()):
                    if stream.id > (event.last_stream_id or 0):
                        stream.unprocessed = True
                        self.on_broken(stream, "the host ends the connection")
            case _:
                super().on_event(event)

    def drop(self, stream: Stream, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.CANCEL) -> None:
        """Let a stream go; the last one of a connection that ends takes it along."""
        super().drop(stream, code)
        if self.is_ending and not self.streams:
            self.pipe.close()

    def abort(self) -> None:
        """Drop the connection and its streams."""
        self.pipe.abort()
        self._pumping.cancel()


class H2Answering:
    """A host's side of one exchange, on a stream of its connection."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self.stream: Stream | None = None
        link.leases += 1

    async def ask(self, request: Ask) -> None:
        """Send a request's beginning; raises Cut."""
        fields = [
            (b":method", request.method),
            (b":scheme", b"https"),
            (b":authority", request.authority),
            (b":path", request.target),
            *request.headers,
        ]
        try:
            self.stream = Stream(self.link.h2.get_next_available_stream_id())
        except h2.exceptions.ProtocolError:
            raise Cut("this connection has used up its streams") from None
        self.link.add(self.stream)
        # Never indexed: a key must not stay in the compression table for as long as the connection lives.
        said = (
            NeverIndexedHeaderTuple(name, value) if name in request.sensitive else (name, value)
            for name, value in fields
        )
        self.link.say(self.stream, said, ends=request.body == "none")

    async def send(self, piece: Piece) -> None:
        """Send the next piece of the request's body; raises Cut."""
        await self.link.send(self._asked(), piece)

    async def head(self) -> Head:
        """Return the answer's beginning; raises Cut, TimeoutError or Refusal."""
        stream = self._asked()
        try:
            await self.link.arrival(stream, lambda: stream.answer is not None)
        except Cut:
            if stream.unprocessed:
                why = "the host ended this connection before it took the request: ask again"
                raise Refusal(503, "unreachable", why) from None
            raise
        fields = stream.answer or []
        pairs = [(name, value) for name, value in fields if not name.startswith(b":")]
        headers.check(pairs, status=502, limits=self.link.limits)
        return Head(int(dict(fields)[b":status"]), headers.onward(pairs))

    async def receive(self) -> Piece:
        """Return the next piece of the answer; raises Cut or TimeoutError."""
        return await self.link.receive(self._asked())

    def close(self) -> None:
        """Let the stream go."""
        self.link.leases -= 1
        if self.stream is not None:
            self.link.drop(self.stream)

    def _asked(self) -> Stream:
        if self.stream is None:
            raise Cut("nothing was asked")
        return self.stream
