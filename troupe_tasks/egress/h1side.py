"""The two sides of an exchange over HTTP/1.1: an agent that asks, and a host that answers."""

from __future__ import annotations

import contextlib

import h11

from troupe_tasks.egress import headers, tunnel
from troupe_tasks.egress.messages import Ask, End, Head, Piece
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.egress.wire import Wire

_SWITCHES = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]


class H1Asking:
    """An agent's side of one exchange."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def receive(self) -> Piece:
        """Return the next piece of the request's body; raises Cut or TimeoutError."""
        try:
            event = await self.wire.next(self.wire.limits.quiet_s)
        except h11.RemoteProtocolError:
            raise Cut("the request's body is malformed") from None
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return End()
        raise Cut("the agent hung up")

    async def gone(self) -> None:
        """Raise Cut once the agent hangs up; return when the next request comes early, of which a chunk is kept."""
        data = await self.wire.pipe.read()
        self.wire.http.receive_data(data)
        if not data:
            raise Cut("the agent hung up")

    async def answer(self, head: Head) -> None:
        """Begin the answer; raises Cut."""
        if head.status == 101:
            fields = [*head.headers, *_SWITCHES]
            await self._say(h11.InformationalResponse(status_code=101, headers=fields, reason=head.reason))
        else:
            await self._say(h11.Response(status_code=head.status, headers=head.headers, reason=head.reason))

    async def send(self, piece: Piece) -> None:
        """Send the next piece of the answer; raises Cut."""
        # Trailers are dropped: nothing that speaks HTTP/1.1 here needs them.
        await self._say(h11.EndOfMessage() if isinstance(piece, End) else h11.Data(data=piece))

    async def refuse(self, refusal: Refusal) -> None:
        """Say why, in a line that shows nothing but our own words, and hang up; raises Cut."""
        if self.wire.http.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            raise Cut(refusal.why)
        body = headers.refusal_body(refusal)
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        with contextlib.suppress(h11.LocalProtocolError):
            await self.wire.send(h11.Response(status_code=refusal.status, headers=fields))
            await self.wire.send(h11.Data(data=body))
            await self.wire.send(h11.EndOfMessage())

    @property
    def received_bytes(self) -> int:
        """Return what has come on the connection so far."""
        return self.wire.pipe.received_bytes

    @property
    def sent_bytes(self) -> int:
        """Return what was sent on the connection so far."""
        return self.wire.pipe.sent_bytes

    def can_go_on(self) -> bool:
        """Tell whether the connection can carry another request."""
        return self.wire.http.our_state is h11.DONE and self.wire.http.their_state is h11.DONE

    async def _say(self, event: h11.Event) -> None:
        try:
            await self.wire.send(event)
        except h11.LocalProtocolError:
            raise Cut("the answer does not keep to what it announced") from None


class H1Answering:
    """A host's side of one exchange; keeps says whether the connection may serve another one."""

    def __init__(self, wire: Wire, *, keeps: bool) -> None:
        self.wire, self._keeps = wire, keeps

    async def ask(self, request: Ask) -> None:
        """Send a request's beginning; raises Cut."""
        fields = [(b"host", request.authority), *(pair for pair in request.headers if pair[0] != b"te")]
        if request.body == "chunked":
            fields.append((b"transfer-encoding", b"chunked"))
        if request.upgrade:
            fields += _SWITCHES
        elif not self._keeps:
            fields.append((b"connection", b"close"))
        try:
            await self.wire.send(h11.Request(method=request.method, target=request.target, headers=fields))
        except h11.LocalProtocolError:
            raise Cut("this request can't be said over HTTP/1.1") from None

    async def send(self, piece: Piece) -> None:
        """Send the next piece of the request's body; raises Cut, or Refusal for one of another length than said."""
        try:
            await self.wire.send(h11.EndOfMessage() if isinstance(piece, End) else h11.Data(data=piece))
        except h11.LocalProtocolError:
            raise Refusal(400, "protocol", "the body is not as long as Content-Length says") from None

    async def head(self) -> Head:
        """Return the answer's beginning; raises Cut, TimeoutError or Refusal."""
        while True:
            event = await self._next()
            switches = isinstance(event, h11.InformationalResponse) and event.status_code == 101
            if isinstance(event, h11.InformationalResponse) and not switches:
                continue
            if not isinstance(event, h11.Response | h11.InformationalResponse):
                raise Cut("the host broke off")
            pairs = list(event.headers)
            headers.check(pairs, status=502, limits=self.wire.limits)
            if switches and not headers.is_websocket(pairs):
                raise Refusal(502, "protocol", "the host switches to something that was not asked for")
            return Head(event.status_code, headers.onward(pairs), bytes(event.reason))

    async def receive(self) -> Piece:
        """Return the next piece of the answer; raises Cut or TimeoutError."""
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return End()
        raise Cut("the host broke off")

    def can_go_on(self) -> bool:
        """Tell whether the connection can carry another request."""
        http = self.wire.http
        return self._keeps and http.our_state is h11.DONE and http.their_state is h11.DONE

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        try:
            return await self.wire.next(self.wire.limits.quiet_s)
        except h11.RemoteProtocolError:
            raise Cut("the host answered with something that is not HTTP") from None


async def switch(asking: H1Asking, answering: H1Answering) -> None:
    """Carry a WebSocket's bytes both ways, after both sides agreed on it; raises Cut."""
    await tunnel.carry(
        asking.wire.pipe,
        answering.wire.pipe,
        up=bytes(asking.wire.http.trailing_data[0]),
        down=bytes(answering.wire.http.trailing_data[0]),
    )
