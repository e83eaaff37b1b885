"""Measure tunnels whose TLS the broker ends, beside a direct connection: `python tests/bench/bench_tls.py`.

Prints JSON: the time to the first byte of a small answer on a kept connection, direct and through the broker, asked
in turns so that a busy machine slows both alike (goal, on an idle one: at most 3 ms added, median of 300); requests a
second with 16 connections at once, and the CPU time of each, beside a bare mitmproxy that ends the same TLS (goal: at
least 0.9 of its requests); and the broker's memory, idle and with 1,000 streams, each with TLS connections of its own
on both sides. mitmproxy is installed into an environment of its own, because it needs an old cryptography; where it
can't be had, its column says why.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import trustme

from tests.bench.bench_broker import _rss_mib
from troupe_tasks.egress import policy as policies
from troupe_tasks.egress import tls
from troupe_tasks.egress.broker import Broker, allow_many_files
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.outside import Outside, Streams
from troupe_tasks.egress.policy import EgressPolicy, Place, ServiceRule
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

HOST, STAND_IN, KEY = "api.example.org", "sk-bench-0123456789abcdef", b"sk-the-real-key"
ROUNDS, WORKERS, STREAMS = 300, 16, 1000
MITMPROXY = "mitmproxy==11.0.2"  # the newest that runs on Python 3.11
Open = Callable[[], Awaitable[Streams]]


class _Local(Outside):
    """A way out that leads to one port of this machine."""

    async def _connect(self, addresses: list[str], port: int, *, limits: Limits) -> Streams:
        return await super()._connect(["127.0.0.1"], int(os.environ["BENCH_PORT"]), limits=limits)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if b"/hold" in head:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass
    writer.close()


def _serve_host(pipe: Connection, chain: bytes) -> None:
    async def serve() -> None:
        allow_many_files()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with trustme.Blob(chain).tempfile() as path:
            context.load_cert_chain(path)
        context.set_alpn_protocols(["http/1.1"])
        server = await asyncio.start_server(
            _answer, "127.0.0.1", 0, ssl=context, backlog=2000, ssl_handshake_timeout=120
        )
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def _serve_broker(home: str, port: int, trusted: str) -> None:
    os.environ.update(HOME=home, BENCH_PORT=str(port))
    os.environ.pop("XDG_STATE_HOME", None)
    allow_many_files()
    contexts = {True: tls.client_context(["h2", "http/1.1"]), False: tls.client_context(["http/1.1"])}
    for context in contexts.values():
        context.load_verify_locations(cadata=trusted)
    outside = _Local(
        ThreadPoolExecutor(4),
        lambda _host, _port: ["127.0.0.1"],
        judge=lambda _address: "",
        trust=contexts.__getitem__,
        refuse_own=False,
    )
    rule = ServiceRule(service="bench", hosts=(HOST,), place=Place(form="bearer"), stand_in=STAND_IN)
    paths = Paths.from_env()
    policies.save(paths, EgressPolicy(id="jane", rehearsal=False, services=(rule,)))
    # On a busy machine a thousand handshakes at once take longer than one may.
    limits = Limits(connections=STREAMS + 50, upstreams=STREAMS + 50, connect_s=120, head_s=120)
    broker = Broker(paths, outside=outside, limits=limits, reader=lambda _agent, _service: KEY)
    asyncio.run(broker.run(asyncio.Event()))


def _request(path: str = "/v1/models") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {STAND_IN}\r\n\r\n".encode()


async def _once(streams: Streams, path: str = "/v1/models") -> float:
    """Ask once; returns the ms until the answer's first byte."""
    reader, writer = streams
    began = time.perf_counter()
    writer.write(_request(path))
    seen = await reader.read(1)
    took = (time.perf_counter() - began) * 1000
    seen += await reader.readuntil(b"\r\n\r\n")
    if not seen.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"answered {seen!r}")
    await reader.readuntil(b"ok")
    return took


async def _medians(*ways: Open) -> list[float]:
    streams = [await way() for way in ways]
    times: list[list[float]] = [[] for _ in ways]
    for number in range(ROUNDS + 20):
        for taken, one in zip(times, streams, strict=True):
            took = await _once(one)
            if number >= 20:
                taken.append(took)
    for _, writer in streams:
        writer.close()
    return [round(statistics.median(taken), 3) for taken in times]


async def _busy(way: Open, pid: int) -> dict[str, float]:
    """Return requests a second, and how much CPU time of a proxy's one takes."""
    before = _cpu_s(pid)
    rate = await _per_second(way)
    return {
        "requests_per_s": rate,
        "cpu_ms_a_request": round((_cpu_s(pid) - before) * 1000 / (100 * WORKERS), 3),
        "after_mib": _rss_mib(pid),
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _per_second(way: Open) -> float:
    streams = [await way() for _ in range(WORKERS)]

    async def worker(one: Streams) -> None:
        for _ in range(100):
            await _once(one)

    began = time.perf_counter()
    await asyncio.gather(*(worker(one) for one in streams))
    took = time.perf_counter() - began
    for _, writer in streams:
        writer.close()
    return round(100 * WORKERS / took, 1)


async def _tunnel(streams: Streams, place: str, context: ssl.SSLContext, *, name: str = HOST) -> Streams:
    reader, writer = streams
    writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head:
        raise RuntimeError(f"no tunnel: {head!r}")
    await writer.start_tls(context, server_hostname=name, ssl_handshake_timeout=120)
    return reader, writer


async def _held_kib(way: Open, pid: int) -> float:
    """Return the broker's growth a stream with 1,000 streams held open, in KiB."""
    before, held = _rss_mib(pid), list[Streams]()
    while len(held) < STREAMS:
        held += await asyncio.gather(*(way() for _ in range(20)))
    await asyncio.gather(*(_once(one, "/hold") for one in held))
    grown = _rss_mib(pid) - before
    for _, writer in held:
        writer.transport.abort()
    return round(grown * 1024 / STREAMS, 1)


def _mitmdump(folder: Path) -> tuple[Path | None, str]:
    """Return mitmproxy's program in an environment of its own, or why there is none."""
    env = folder / "mitmproxy"
    # One of what it needs comes as source only.
    install = ["install", "--quiet", "--only-binary", ":all:", "--no-binary", "pyperclip"]
    steps = (
        [sys.executable, "-m", "venv", str(env)],
        [str(env / "bin" / "pip"), *install, MITMPROXY],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, encoding="utf-8", timeout=400, check=False)
        if done.returncode:
            return None, f"not to be had: {done.stderr.strip().splitlines()[-1][:200]}"
    return env / "bin" / "mitmdump", ""


async def _mitmproxy(program: Path, folder: Path, port: int) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = free.getsockname()[1]
    config = folder / "config"
    flags = f"--quiet --ssl-insecure --listen-host 127.0.0.1 --listen-port {at} --set flow_detail=0".split()
    argv = [str(program), *flags, "--set", f"confdir={config}"]
    # It goes on by itself: nothing here waits for it.
    with subprocess.Popen(argv) as process:  # noqa: ASYNC220
        try:
            authority = config / "mitmproxy-ca-cert.pem"
            async with asyncio.timeout(60):
                while not authority.exists() or not _listens(at):
                    await asyncio.sleep(0.1)
            trusting = ssl.create_default_context(cafile=str(authority))
            trusting.set_alpn_protocols(["http/1.1"])
            trusting.check_hostname = False

            async def way() -> Streams:
                streams = await asyncio.open_connection("127.0.0.1", at)
                return await _tunnel(streams, f"127.0.0.1:{port}", trusting)

            idle = _rss_mib(process.pid)
            (first_byte,) = await _medians(way)
            return {"idle_mib": idle, "first_byte_ms": first_byte, **await _busy(way, process.pid)}
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def _bench(home: Path, port: int, pid: int, trusted: str) -> dict[str, object]:
    folder = home / ".local/state/troupe/egress/jane/socket"
    while not (folder / "broker.sock").exists():
        await asyncio.sleep(0.05)
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    trusting.set_alpn_protocols(["http/1.1"])
    straight = ssl.create_default_context(cadata=trusted)

    async def direct() -> Streams:
        return await asyncio.open_connection("127.0.0.1", port, ssl=straight, server_hostname=HOST)

    async def broker() -> Streams:
        with sockets.short_name(folder / "broker.sock") as name:
            streams = await asyncio.open_unix_connection(name)
        return await _tunnel(streams, f"{HOST}:443", trusting)

    idle = _rss_mib(pid)
    first, through = await _medians(direct, broker)
    busy = await _busy(broker, pid)
    found: dict[str, object] = {
        "direct": {"first_byte_ms": first, "requests_per_s": await _per_second(direct)},
        "broker": {"idle_mib": idle, "first_byte_ms": through, **busy},
        "added_first_byte_ms": round(through - first, 3),
    }
    program, why = await asyncio.to_thread(_mitmdump, home)
    if program is None:
        found["mitmproxy"] = why
    else:
        other = await _mitmproxy(program, home, port)
        found["mitmproxy"], found["requests_ratio"] = (
            other,
            round(busy["requests_per_s"] / other["requests_per_s"], 2),
        )
    found["broker_kib_a_stream"] = await _held_kib(broker, pid)
    return found


def main() -> int:
    """Run the bench and print its figures; status 1 when mitmproxy is the faster one."""
    allow_many_files()
    spawning = multiprocessing.get_context("spawn")
    mine, theirs = spawning.Pipe()
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST, "127.0.0.1")
    chain = leaf.private_key_and_cert_chain_pem.bytes()
    trusted = authority.cert_pem.bytes().decode()
    with tempfile.TemporaryDirectory() as home:
        host = spawning.Process(target=_serve_host, args=(theirs, chain), daemon=True)
        host.start()
        port = int(mine.recv())
        broker = spawning.Process(target=_serve_broker, args=(home, port, trusted), daemon=True)
        broker.start()
        try:
            found = asyncio.run(_bench(Path(home), port, broker.pid or 0, trusted))
        finally:
            for child in (broker, host):
                child.terminate()
                child.join()
    print(json.dumps(found, indent=1))
    ratio = found.get("requests_ratio")
    return int(isinstance(ratio, float) and ratio < 0.9)


if __name__ == "__main__":
    sys.exit(main())
