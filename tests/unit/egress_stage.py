"""A broker with agents, keys and TLS hosts of the test's own: real sockets, real TLS, an authority by trustme."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import trustme

from troupe_tasks.egress import policy as policies
from troupe_tasks.egress import tls
from troupe_tasks.egress.broker import Broker
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.outside import Outside, Streams
from troupe_tasks.egress.policy import EgressPolicy, HostRule, Mode, Place, ServiceRule
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

HOST, OTHER, BARE = "api.example.org", "files.example.org", "www.example.net"
STAND_IN, JOANS, SEARCH = "sk-or-v1-stand-in-of-jane", "sk-or-v1-stand-in-of-joan", "srch-stand-in-of-jane"
KEY = b"sk-or-v1-the-real-key-0123456789"
QUICK = Limits(
    head_s=1, idle_s=5, quiet_s=10, connect_s=3, resolve_s=1, stuck_s=10, kept_s=3, connections=1200
)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@functools.cache
def authority() -> trustme.CA:
    return trustme.CA()


def bearer(service: str = "router", *hosts: str, stand_in: str = STAND_IN) -> ServiceRule:
    place = Place(form="bearer")
    return ServiceRule(service=service, hosts=hosts or (HOST,), place=place, stand_in=stand_in)


def service(form: str, name: str = "", *, stand_in: str = STAND_IN, provider: bool = False) -> ServiceRule:
    place = Place.model_validate({"form": form, "name": name})
    return ServiceRule(
        service="router", hosts=(HOST,), place=place, stand_in=stand_in, model_provider=provider
    )


class Local(Outside):
    """A way out whose port 443 is a host of the test's, found by its address."""

    def open_ports(self, ports: dict[str, int]) -> None:
        object.__setattr__(self, "ports", ports)

    async def _connect(self, addresses: list[str], port: int, *, limits: Limits) -> Streams:
        ports: dict[str, int] = getattr(self, "ports", {})
        return await super()._connect(addresses, ports.get(addresses[0], port), limits=limits)


@dataclass
class Stage:
    """The broker, its agents' sockets, and the hosts outside."""

    paths: Paths
    addresses: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    keys: dict[tuple[str, str], bytes] = field(default_factory=lambda: {("jane", "router"): KEY})
    reads: list[tuple[str, str]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)  # what hosts got
    sockets: int = 0  # connections that hosts got
    broker: Broker | None = None
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    servers: list[asyncio.Server] = field(default_factory=list)

    def lookup(self, host: str, port: int) -> list[str]:
        if host not in self.addresses:
            raise OSError("no such name")
        return [self.addresses[host]]

    def read_key(self, agent_id: str, service_name: str) -> bytes:
        self.reads.append((agent_id, service_name))
        if (agent_id, service_name) not in self.keys:
            raise OSError("no such key")
        return self.keys[agent_id, service_name]

    async def host(
        self, handler: Handler, name: str = HOST, *, h2: bool = False, cert: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        """Run a TLS host; returns its server."""
        context = cert or server_context(name)
        context.set_alpn_protocols(["h2", "http/1.1"] if h2 else ["http/1.1"])
        address = self.addresses.setdefault(name, f"127.0.1.{len(self.addresses) + 1}")

        async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.sockets += 1
            self.open.add(writer)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                await handler(reader, writer)
            await hang_up(writer)
            self.open.discard(writer)

        server = await asyncio.start_server(counted, address, 0, ssl=context, backlog=1200)
        self.ports[address] = server.sockets[0].getsockname()[1]
        self.servers.append(server)
        return server

    async def close(self) -> None:
        """End every host."""
        for server in self.servers:
            server.close()
        async with asyncio.timeout(10):
            while self.open:
                for writer in self.open:
                    writer.transport.abort()
                await asyncio.sleep(0.01)
            for server in self.servers:
                await server.wait_closed()
            await asyncio.sleep(0.05)  # for what the transports still have to say to the loop

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each HTTP/1.1 request with its own body, after noting its head."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                body = await read_body(reader, head)
                status = b"401 No" if b"/refuse" in head.split(b"\r\n")[0] else b"200 OK"
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()

    async def agent(self, agent_id: str = "jane") -> Streams:
        with sockets.short_name(self.paths.egress(agent_id) / "socket" / "broker.sock") as name:
            return await asyncio.open_unix_connection(name, limit=1 << 16)

    def trust(self, agent_id: str = "jane") -> ssl.SSLContext:
        """Return what an agent's programs trust: the broker's authority alone."""
        return ssl.create_default_context(cafile=str(self.paths.egress(agent_id) / "socket" / "ca.pem"))

    async def connect(
        self, host: str = HOST, port: int = 443, *, agent_id: str = "jane"
    ) -> tuple[int, Streams]:
        """Ask for a tunnel; returns the answer's status."""
        reader, writer = await self.agent(agent_id)
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ")[1]), (reader, writer)

    async def tunnel(
        self, host: str = HOST, *, sni: str | None = None, h2: bool = False, agent_id: str = "jane"
    ) -> Streams:
        """Return TLS streams to a host, as an agent's program has them."""
        status, (reader, writer) = await self.connect(host, agent_id=agent_id)
        assert status == 200
        context = self.trust(agent_id)
        if h2:
            context.set_alpn_protocols(["h2"])
        await writer.start_tls(context, server_hostname=sni or host)
        return reader, writer

    async def ask(self, head: str, body: bytes = b"", *, host: str = HOST, agent_id: str = "jane") -> bytes:
        """Send one raw request inside a tunnel of its own, and return all that comes back."""
        reader, writer = await self.tunnel(host, agent_id=agent_id)
        writer.write(head.encode("latin-1") + body)
        async with asyncio.timeout(10):
            answer = await reader.read()
        await hang_up(writer)
        return answer

    def log(self, agent_id: str = "jane") -> list[dict[str, object]]:
        text = (self.paths.logs(agent_id) / "egress.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    async def logged(self, count: int, agent_id: str = "jane") -> list[dict[str, object]]:
        async with asyncio.timeout(5):
            while len(self.log(agent_id)) < count:
                await asyncio.sleep(0.01)
        return self.log(agent_id)

    @contextlib.asynccontextmanager
    async def proxy(self) -> AsyncIterator[str]:
        """Yield the address of a TCP proxy that leads to jane's socket, as the sandbox has one."""

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner, outer = await self.agent()
            await asyncio.gather(_pour(reader, outer), _pour(inner, writer))

        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def get(path: str = "/v1/models", *, host: str = HOST, extra: str = "", close: bool = True) -> str:
    """Return a request's head."""
    end = "Connection: close\r\n" if close else ""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{extra}{end}\r\n"


AUTH = f"Authorization: Bearer {STAND_IN}\r\n"


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    lower = head.lower()
    if b"content-length: " in lower:
        return await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))
    body = b""
    if b"transfer-encoding: chunked" in lower:
        while size := int((await reader.readline()).strip(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return body


def server_context(*names: str, ca: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (ca or authority()).issue_cert(*names).configure_cert(context)
    return context


@functools.cache
def trust(speaks_h2: bool) -> ssl.SSLContext:
    context = tls.client_context(["h2", "http/1.1"] if speaks_h2 else ["http/1.1"])
    authority().configure_trust(context)
    return context


@contextlib.asynccontextmanager
async def staged(
    *services: ServiceRule,
    hosts: tuple[HostRule, ...] = (),
    mode: Mode = "balanced",
    limits: Limits = QUICK,
    judge: Callable[[str], str] | None = None,
    lookup: Callable[[str, int], list[str]] | None = None,
) -> AsyncIterator[Stage]:
    """Run a broker with jane, who has the services, and joan, who has one of her own."""
    stage = Stage(Paths.from_env())
    policies.save(
        stage.paths, EgressPolicy(id="jane", rehearsal=False, mode=mode, hosts=hosts, services=services)
    )
    joans = bearer("router", HOST, stand_in=JOANS)
    policies.save(stage.paths, EgressPolicy(id="joan", rehearsal=False, services=(joans,)))
    outside = Local(
        ThreadPoolExecutor(4),
        lookup or stage.lookup,
        judge=judge or (lambda _: ""),
        trust=trust,
        refuse_own=False,
    )
    outside.open_ports(stage.ports)
    stop = asyncio.Event()
    stage.broker = Broker(stage.paths, outside=outside, limits=limits, reader=stage.read_key)
    running = asyncio.create_task(stage.broker.run(stop))
    control = stage.paths.run / "broker.sock"
    try:
        async with asyncio.timeout(5):
            while not control.exists():
                await asyncio.sleep(0.01)
        yield stage
    finally:
        stop.set()
        await running
        await stage.close()


@dataclass
class H2Host:
    """A host that speaks HTTP/2: it notes what it gets, and answers by path."""

    requests: list[dict[bytes, bytes]] = field(default_factory=list)
    bodies: dict[int, bytes] = field(default_factory=dict)
    go: asyncio.Event = field(default_factory=asyncio.Event)  # lets /hold go on
    limit: int = 100

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        machine = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        machine.initiate_connection()
        tasks: set[asyncio.Task[None]] = set()
        writer.write(machine.data_to_send())
        try:
            while data := await reader.read(1 << 16):
                for event in machine.receive_data(data):
                    stream_id = getattr(event, "stream_id", 0) or 0
                    if isinstance(event, h2.events.RequestReceived):
                        self.requests.append(dict(event.headers or ()))
                        self.bodies[stream_id] = b""
                    elif isinstance(event, h2.events.DataReceived):
                        self.bodies[stream_id] += event.data
                        machine.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
                    elif isinstance(event, h2.events.StreamEnded):
                        path = self.requests[-1][b":path"].decode()
                        work = self._answer(machine, writer, stream_id, path)
                        tasks.add(asyncio.create_task(work))
                writer.write(machine.data_to_send())
                await writer.drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(
        self, machine: h2.connection.H2Connection, writer: asyncio.StreamWriter, stream_id: int, path: str
    ) -> None:
        def say(data: bytes, *, ends: bool = False) -> None:
            with contextlib.suppress(h2.exceptions.ProtocolError):
                machine.send_data(stream_id, data, end_stream=ends)
            writer.write(machine.data_to_send())

        machine.send_headers(stream_id, [(":status", "200"), ("content-type", "text/event-stream")])
        if path == "/hold":
            say(b"data: begun\n\n")
            await self.go.wait()
        if path == "/goaway":
            say(b"data: begun\n\n")
            machine._data_to_send += b"\0\0\x08\x07\0\0\0\0\0" + stream_id.to_bytes(4, "big") + bytes(4)
            writer.write(machine.data_to_send())
            await self.go.wait()
        if path == "/grpc":
            say(b"message")
            machine.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)
            writer.write(machine.data_to_send())
            return
        say(b"data: %d\n\n" % len(self.bodies[stream_id]), ends=True)


def files_without(folder: Path, secret: bytes) -> bool:
    """Tell whether no file in a folder holds a secret."""
    return not any(secret in path.read_bytes() for path in folder.rglob("*") if path.is_file())
