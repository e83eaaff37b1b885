"""The rehearsal model's process, one per machine: `python -m troupe_tasks.rehearsal.server`.

It listens on a private Unix socket that only the broker connects to, on behalf of rehearsal agents.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

import h11

from troupe_tasks import durable, locks
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.pipe import Plain
from troupe_tasks.egress.verdict import Cut
from troupe_tasks.egress.wire import Wire
from troupe_tasks.errors import TroupeError
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths
from troupe_tasks.rehearsal import reply

_log = logging.getLogger(__name__)
_BODY_CAP_BYTES = 8 * 1024 * 1024
_CONNECTIONS = 1024
_BODY_S = 60.0


class Server:
    """Answer chat completions, each as the request itself says."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._limits = Limits()
        self._live: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until stop is set."""
        durable.make_private_dir(self._paths.run)
        path = self._paths.run / "rehearsal.sock"
        listening = sockets.listen(path)
        server = await sockets.serve(listening, self._accept, limit_bytes=self._limits.chunk_bytes)
        try:
            await stop.wait()
        finally:
            server.close()
            for task in self._live:
                task.cancel()
            await asyncio.gather(*self._live, return_exceptions=True)
            path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._live) >= _CONNECTIONS:
            writer.transport.abort()
            return
        wire = Wire(Plain(reader, writer, limits=self._limits), role=h11.SERVER, limits=self._limits)
        task = asyncio.get_running_loop().create_task(self._serve(wire))
        self._live.add(task)
        task.add_done_callback(self._live.discard)

    async def _serve(self, wire: Wire) -> None:
        try:
            while await self._one(wire):
                wire.http.start_next_cycle()
            await wire.linger()
        except (Cut, TimeoutError, h11.ProtocolError):
            wire.abort()
        finally:
            wire.close()

    async def _one(self, wire: Wire) -> bool:
        request = await wire.next(self._limits.idle_s)
        if not isinstance(request, h11.Request):
            return False
        try:
            body = await _body(wire)
            await self._route(wire, request, body=body)
        except reply.BadRequest as bad:
            await _send(wire, bad.body(), status=bad.status)
        return wire.http.our_state is h11.DONE and wire.http.their_state is h11.DONE

    async def _route(self, wire: Wire, request: h11.Request, *, body: bytes) -> None:
        match request.method, request.target.partition(b"?")[0]:
            case b"GET", b"/v1/models":
                await _send(wire, reply.models())
            case b"POST", b"/v1/chat/completions":
                await _complete(wire, reply.compose(body))
            case _:
                raise reply.BadRequest(404, "not_found", "There is nothing here.")


async def _body(wire: Wire) -> bytes:
    """Return a request's body, at most 8 MiB of it."""
    body = bytearray()
    async with asyncio.timeout(_BODY_S):
        while isinstance(event := await wire.next(_BODY_S), h11.Data):
            body += event.data
            if len(body) > _BODY_CAP_BYTES:
                raise reply.BadRequest(413, "too_large", "The body is larger than 8 MiB.")
    if not isinstance(event, h11.EndOfMessage):
        raise Cut("hung up in the middle of a request")
    return bytes(body)


async def _complete(wire: Wire, answer: reply.Reply) -> None:
    await asyncio.sleep(answer.slow_s)
    if not answer.stream:
        if answer.cut:
            await _break_off(wire, json.dumps(answer.whole()).encode())
        await _send(wire, answer.whole())
        return
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in answer.chunks()]
    fields = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await wire.send(h11.Response(status_code=200, headers=fields))
    for number, event in enumerate(events):
        if answer.cut and number >= len(events) // 2:
            raise Cut("as the request asked")
        await wire.send(h11.Data(data=event))
    await wire.send(h11.Data(data=b"data: [DONE]\n\n"))
    await wire.send(h11.EndOfMessage())


async def _break_off(wire: Wire, data: bytes) -> None:
    """Send half of an answer, then drop the connection."""
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await wire.send(h11.Response(status_code=200, headers=fields))
    await wire.send(h11.Data(data=data[: len(data) // 2]))
    raise Cut("as the request asked")


async def _send(wire: Wire, answer: reply.Json, *, status: int = 200) -> None:
    data = json.dumps(answer).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await wire.send(h11.Response(status_code=status, headers=fields))
    await wire.send(h11.Data(data=data))
    await wire.send(h11.EndOfMessage())


async def _serve_until_signal(paths: Paths) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Server(paths).run(stop)


def main() -> int:
    """Run the rehearsal model until a signal ends it; a second one is refused."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    os.umask(0o077)
    paths = Paths.from_env()
    try:
        with locks.named(paths, "rehearsal", wait_s=0):
            asyncio.run(_serve_until_signal(paths))
    except TroupeError as error:
        _log.error("the rehearsal model can't run: %s. %s", error, error.hint)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
