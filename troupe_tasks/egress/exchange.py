"""Carry one request to its upstream and the answer back, both at once, and end when either side is gone."""

from __future__ import annotations

import asyncio
import contextlib

import h11

from troupe_tasks.egress import headers
from troupe_tasks.egress.audit import Entry
from troupe_tasks.egress.target import Target
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.egress.wire import Wire


async def carry(client: Wire, upstream: Wire, *, request: h11.Request, place: Target, entry: Entry) -> None:
    """Serve one plain HTTP request; raises Refusal before an answer began, Cut after it."""
    try:
        await upstream.send(
            h11.Request(
                method=request.method,
                target=place.path,
                headers=[
                    *headers.onward(list(request.headers)),
                    *_host(request, place),
                    (b"connection", b"close"),
                ],
            )
        )
    except Cut:
        raise Refusal(502, "unreachable", "the host broke the connection") from None
    up = asyncio.create_task(_upload(client, upstream))
    down = asyncio.create_task(_download(client, upstream, entry=entry))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done() and not down.done():
            up.result()  # raises when the agent is gone: nobody waits for the answer
        await down
    finally:
        for task in (up, down):
            task.cancel()
            # What either says now is of no use: the exchange has its outcome already.
            with contextlib.suppress(asyncio.CancelledError, Cut, Refusal, TimeoutError, h11.ProtocolError):
                await task


def _host(request: h11.Request, place: Target) -> list[tuple[bytes, bytes]]:
    if any(key == b"host" for key, _ in request.headers):
        return []
    return [(b"host", place.host.encode() if place.port == 80 else f"{place.host}:{place.port}".encode())]


async def _upload(client: Wire, upstream: Wire) -> None:
    """Send the request's body on, then watch for the agent hanging up."""
    while True:
        event = await client.next(client.limits.quiet_s)
        if isinstance(event, h11.ConnectionClosed):
            raise Cut("the agent hung up")
        if not isinstance(event, h11.Data | h11.EndOfMessage):
            return
        # Trailers are dropped: nothing that the broker carries needs them.
        passed = event if isinstance(event, h11.Data) else h11.EndOfMessage()
        try:
            await upstream.send(passed)
        except (Cut, h11.LocalProtocolError):
            return  # it may have answered early, then closed: the answer says why
        if isinstance(event, h11.EndOfMessage):
            break
    # The next request may come early: one chunk of it is kept, and no more is read.
    data = await client.read()
    client.http.receive_data(data)
    if not data:
        raise Cut("the agent hung up")


async def _download(client: Wire, upstream: Wire, *, entry: Entry) -> None:
    """Send the answer on as it comes."""
    while True:
        event = await _answered(upstream, begun=entry.status != 0)
        if isinstance(event, h11.Response):
            pairs = list(event.headers)
            headers.check(pairs, status=502, limits=upstream.limits)
            entry.status = event.status_code
            await client.send(
                h11.Response(
                    status_code=event.status_code, headers=headers.onward(pairs), reason=bytes(event.reason)
                )
            )
        elif isinstance(event, h11.Data):
            await client.send(event)
        elif isinstance(event, h11.EndOfMessage):
            await client.send(h11.EndOfMessage())
            return
        elif not isinstance(event, h11.InformationalResponse):
            raise _broken("the host broke off", begun=entry.status != 0)


async def _answered(upstream: Wire, *, begun: bool) -> h11.Event | type[h11.PAUSED]:
    try:
        return await upstream.next(upstream.limits.quiet_s)
    except TimeoutError:
        if begun:
            raise Cut("the host fell silent") from None
        raise Refusal(504, "unreachable", "the host did not answer in time") from None
    except (Cut, h11.RemoteProtocolError):
        raise _broken(
            "the host broke off, or answered with something that is not HTTP", begun=begun
        ) from None


def _broken(why: str, *, begun: bool) -> Exception:
    return Cut(why) if begun else Refusal(502, "unreachable", why)
