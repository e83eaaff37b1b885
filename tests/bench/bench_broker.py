"""Measure the broker beside a direct connection, in one run: `python tests/bench/bench_broker.py [HOST:PORT]`.

HOST:PORT is another forward proxy to measure the same way (the comparison in docs/egress.md). Prints JSON:
medians in ms over 300 small requests, each on a connection of its own and on a kept one; time to the first
byte of an event stream; requests a second with 16 at once; and the broker's memory, idle and with 200 streams.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from troupe_tasks.egress import policy as policies
from troupe_tasks.egress.broker import Broker, allow_many_files
from troupe_tasks.egress.outside import Outside
from troupe_tasks.egress.policy import EgressPolicy, HostRule
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

HOST = "up.example.org"
ROUNDS = 300
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[[], Awaitable[Streams]]


async def _upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if b"/stream" in head:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                writer.write(b"c\r\ndata: word\n\n\r\n")
                await asyncio.sleep(2 if b"/stream/hold" in head else 0.02)
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass
    writer.close()


def _serve_upstream(pipe: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(_upstream, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def _serve_broker(home: str, port: int) -> None:
    os.environ["HOME"] = home
    os.environ.pop("XDG_STATE_HOME", None)
    allow_many_files()

    async def serve() -> None:
        outside = Outside(
            ThreadPoolExecutor(4),
            lookup=lambda _host, _port: ["127.0.0.1"],
            judge=lambda _address: "",
            refuse_own=False,
        )
        paths = Paths.from_env()
        rule = HostRule(host=HOST, ports=(port,), origin="bench")
        policies.save(paths, EgressPolicy(id="jane", rehearsal=False, hosts=(rule,)))
        await Broker(paths, outside=outside).run(asyncio.Event())

    asyncio.run(serve())


async def _once(streams: Streams, request: bytes, end: bytes) -> None:
    reader, writer = streams
    writer.write(request)
    seen = b""
    while end not in seen:
        chunk = await reader.read(4096)
        if not chunk:
            raise RuntimeError(f"hung up after {seen!r}")
        seen += chunk


async def _median_ms(connect: Open, request: bytes, *, kept: bool, end: bytes = b"ok") -> float:
    times: list[float] = []
    streams = await connect() if kept else None
    for _ in range(ROUNDS):
        began = time.perf_counter()
        used = streams or await connect()
        await _once(used, request, end)
        times.append((time.perf_counter() - began) * 1000)
        if streams is None:
            used[1].close()
    return round(statistics.median(times), 3)


async def _per_second(connect: Open, request: bytes) -> float:
    async def worker() -> None:
        streams = await connect()
        for _ in range(100):
            await _once(streams, request, b"ok")
        streams[1].close()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(16)))
    return round(1600 / (time.perf_counter() - began), 1)


async def _measure(connect: Open, prefix: str, place: str) -> dict[str, float]:
    def get(path: str) -> bytes:
        return f"GET {prefix}{path} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()

    for _ in range(20):
        streams = await connect()
        await _once(streams, get("/"), b"ok")
        streams[1].close()
    return {
        "new_connection_ms": await _median_ms(connect, get("/"), kept=False),
        "kept_connection_ms": await _median_ms(connect, get("/"), kept=True),
        "stream_first_byte_ms": await _median_ms(connect, get("/stream"), kept=False, end=b"data:"),
        "requests_per_s": await _per_second(connect, get("/")),
    }


def _rss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return round(int(text.split("VmRSS:")[1].split()[0]) / 1024, 1)


async def _held(connect: Open, prefix: str, place: str) -> list[Streams]:
    held = [await connect() for _ in range(200)]
    request = f"GET {prefix}/stream/hold HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()
    await asyncio.gather(*(_once(streams, request, b"data:") for streams in held))
    return held


async def _bench(home: str, port: int, pid: int, other: str) -> dict[str, object]:
    place = f"{HOST}:{port}"
    socket = Path(home) / ".local/state/troupe/egress/jane/socket/broker.sock"
    while not socket.exists():
        await asyncio.sleep(0.05)

    async def direct() -> Streams:
        return await asyncio.open_connection("127.0.0.1", port)

    async def broker() -> Streams:
        with sockets.short_name(socket) as name:
            return await asyncio.open_unix_connection(name)

    async def foreign() -> Streams:
        host, _, number = other.partition(":")
        return await asyncio.open_connection(host, int(number))

    found: dict[str, object] = {"broker_idle_mib": _rss_mib(pid)}
    found["direct"] = straight = await _measure(direct, "", place)
    found["broker"] = through = await _measure(broker, f"http://{place}", place)
    added = through["stream_first_byte_ms"] - straight["stream_first_byte_ms"]
    found["added_first_byte_ms"] = round(added, 3)  # goal, on an idle machine: at most 3
    held = await _held(broker, f"http://{place}", place)
    found["broker_200_streams_mib"] = _rss_mib(pid)
    for _, writer in held:
        writer.close()
    if other:
        found["other"] = await _measure(foreign, f"http://127.0.0.1:{port}", f"127.0.0.1:{port}")
    return found


def main(argv: list[str]) -> int:
    """Run the bench and print its figures."""
    allow_many_files()
    spawning = multiprocessing.get_context("spawn")
    mine, theirs = spawning.Pipe()
    with tempfile.TemporaryDirectory() as home:
        upstream = spawning.Process(target=_serve_upstream, args=(theirs,), daemon=True)
        upstream.start()
        port = int(mine.recv())
        broker = spawning.Process(target=_serve_broker, args=(home, port), daemon=True)
        broker.start()
        try:
            found = asyncio.run(_bench(home, port, broker.pid or 0, argv[0] if argv else ""))
        finally:
            for child in (broker, upstream):
                child.terminate()
                child.join()
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
