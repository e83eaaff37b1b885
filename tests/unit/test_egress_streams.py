"""A thousand streams at once through the broker: each served, and the broker's memory flat meanwhile.

The broker is a process of its own here, so that its memory is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from tests.unit.egress_stage import (
    AUTH,
    HOST,
    KEY,
    STAND_IN,
    Local,
    authority,
    bearer,
    get,
    hang_up,
    server_context,
)
from troupe_tasks.egress import policy as policies
from troupe_tasks.egress import tls
from troupe_tasks.egress.broker import Broker, allow_many_files
from troupe_tasks.egress.outside import Streams
from troupe_tasks.egress.policy import EgressPolicy
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

CONNECTIONS, ROUNDS = 10, 5


def serve_broker(port: int, trusted: str) -> None:
    """Run a broker whose only host is at a port of this machine, and has a certificate of trusted."""
    allow_many_files()

    def trust(speaks_h2: bool) -> ssl.SSLContext:
        context = tls.client_context(["h2", "http/1.1"] if speaks_h2 else ["http/1.1"])
        context.load_verify_locations(cadata=trusted)
        return context

    outside = Local(
        ThreadPoolExecutor(4),
        lambda _host, _port: ["127.0.0.1"],
        judge=lambda _address: "",
        trust=functools.cache(trust),
        refuse_own=False,
    )
    outside.open_ports({"127.0.0.1": port})
    broker = Broker(Paths.from_env(), outside=outside, reader=lambda _agent, _service: KEY)
    asyncio.run(broker.run(asyncio.Event()))


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


@dataclass
class Ticker:
    """A host whose every answer goes on, an event at each tick."""

    ticks: int = 0
    keyed: int = 0
    asked: int = 0
    ticked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def tick(self) -> None:
        async with self.ticked:
            self.ticks += 1
            self.ticked.notify_all()

    async def next(self, seen: int) -> int:
        async with self.ticked:
            await self.ticked.wait_for(lambda: self.ticks > seen)
            return self.ticks

    async def http1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked, self.keyed = self.asked + 1, self.keyed + (KEY in head)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            seen = 0
            while seen < ROUNDS:
                seen = await self.next(seen)
                writer.write(b"c\r\ndata: tick\n\n\r\n")
                await writer.drain()
        writer.close()

    async def http2(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        machine = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        machine.initiate_connection()
        tasks: set[asyncio.Task[None]] = set()

        async def answer(stream_id: int) -> None:
            machine.send_headers(stream_id, [(":status", "200")])
            seen = 0
            while seen < ROUNDS:
                seen = await self.next(seen)
                machine.send_data(stream_id, b"data: tick\n\n")
                writer.write(machine.data_to_send())

        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                for event in machine.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        self.asked += 1
                        self.keyed += any(KEY in value for _, value in event.headers or ())
                        tasks.add(asyncio.create_task(answer(event.stream_id or 0)))
                writer.write(machine.data_to_send())
                await writer.drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


async def tunnel(paths: Paths, *, speaks_h2: bool) -> Streams:
    with sockets.short_name(paths.egress("jane") / "socket" / "broker.sock") as name:
        reader, writer = await asyncio.open_unix_connection(name)
    writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    context = ssl.create_default_context(cafile=str(paths.egress("jane") / "socket" / "ca.pem"))
    context.set_alpn_protocols(["h2" if speaks_h2 else "http/1.1"])
    await writer.start_tls(context, server_hostname=HOST, ssl_handshake_timeout=60)
    return reader, writer


class Many:
    """An agent with a connection that carries many streams: h2, or one of HTTP/1.1."""

    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams
        self.machine = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )

    def ask(self, count: int, *, speaks_h2: bool) -> None:
        if not speaks_h2:
            self.writer.write(get(extra=AUTH).encode())
            return
        self.machine.initiate_connection()
        for number in range(count):
            fields = [(":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", f"/{number}")]
            fields.append(("authorization", f"Bearer {STAND_IN}"))
            self.machine.send_headers(2 * number + 1, fields, end_stream=True)
        self.writer.write(self.machine.data_to_send())

    async def events(self, count: int, *, speaks_h2: bool) -> None:
        """Wait for so many events."""
        while count > 0:
            if not speaks_h2:
                await self.reader.readuntil(b"data: tick\n\n")
                count -= 1
                continue
            data = await self.reader.read(1 << 16)
            assert data, "the broker hung up"
            for event in self.machine.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self.machine.acknowledge_received_data(
                        event.flow_controlled_length or 0, event.stream_id or 0
                    )
                    count -= event.data.count(b"tick")
            self.writer.write(self.machine.data_to_send())


@contextlib.asynccontextmanager
async def running(ticker: Ticker, *, speaks_h2: bool) -> AsyncIterator[tuple[Paths, int]]:
    """Yield the paths and process of a broker whose host is the ticker."""
    paths, context = Paths.from_env(), server_context(HOST)
    context.set_alpn_protocols(["h2", "http/1.1"])
    policies.save(paths, EgressPolicy(id="jane", rehearsal=False, services=(bearer(),)))
    handler = ticker.http2 if speaks_h2 else ticker.http1
    host = await asyncio.start_server(
        handler, "127.0.0.1", 0, ssl=context, backlog=2000, ssl_handshake_timeout=60
    )
    port = host.sockets[0].getsockname()[1]
    trusted = authority().cert_pem.bytes().decode()
    process = multiprocessing.get_context("spawn").Process(
        target=serve_broker, args=(port, trusted), daemon=True
    )
    process.start()
    try:
        async with asyncio.timeout(30):
            while not (paths.run / "broker.sock").exists():
                await asyncio.sleep(0.02)
        yield paths, process.pid or 0
    finally:
        process.terminate()
        await asyncio.to_thread(process.join, 10)
        host.close()


# As many connections as an agent may have, of HTTP/1.1; a thousand agents' worth is in tests/bench/bench_tls.py.
@pytest.mark.parametrize(("speaks_h2", "streams", "kib_a_stream"), [(True, 1000, 40), (False, 250, 160)])
def test_a_thousand_streams_are_served_at_once_in_flat_memory(
    speaks_h2: bool, streams: int, kib_a_stream: int
) -> None:
    connections = CONNECTIONS if speaks_h2 else streams
    each = streams // connections

    async def scene() -> None:
        ticker = Ticker()
        async with running(ticker, speaks_h2=speaks_h2) as (paths, pid):
            await hang_up((await tunnel(paths, speaks_h2=speaks_h2))[1])  # what is loaded once
            before, agents = rss_kib(pid), []
            for _ in range(connections // CONNECTIONS):
                opening = (tunnel(paths, speaks_h2=speaks_h2) for _ in range(CONNECTIONS))
                agents += [Many(streams) for streams in await asyncio.gather(*opening)]
            for agent in agents:
                agent.ask(each, speaks_h2=speaks_h2)
            async with asyncio.timeout(60):
                while ticker.asked < streams:
                    await asyncio.sleep(0.02)
            assert ticker.keyed == streams
            sizes = []
            for _ in range(ROUNDS):
                await ticker.tick()
                await asyncio.gather(*(agent.events(each, speaks_h2=speaks_h2) for agent in agents))
                sizes.append(rss_kib(pid))
            print("KiB a stream, at each round:", [round((size - before) / streams, 1) for size in sizes])
            assert sizes[-1] - before < kib_a_stream * streams
            assert sizes[-2] - sizes[0] < 4 * streams
            for agent in agents:
                await hang_up(agent.writer)

    allow_many_files()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    asyncio.run(scene())
