"""Keys put in over HTTP/2: real clients and hosts, the way over to HTTP/1.1, and a peer that plays games."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import httpx
import pytest

from tests.unit.egress_stage import (
    AUTH,
    HOST,
    JOANS,
    KEY,
    OTHER,
    STAND_IN,
    H2Host,
    Stage,
    bearer,
    get,
    hang_up,
    service,
    staged,
)
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.outside import Streams

BEARER = {"Authorization": f"Bearer {STAND_IN}"}


def client(stage: Stage, proxy: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(http2=True, proxy=proxy, verify=stage.trust(), timeout=10)


def test_a_real_client_streams_over_http2_and_the_host_gets_the_key() -> None:
    async def scene() -> None:
        host = H2Host()
        async with staged(bearer()) as stage, stage.proxy() as proxy:
            await stage.host(host, h2=True)
            async with client(stage, proxy) as agent:
                answer = await agent.post(
                    f"https://{HOST}/v1/chat?a=1", content=b"x" * 300_000, headers=BEARER
                )
                assert answer.http_version == "HTTP/2"
                assert answer.content == b"data: 300000\n\n"
                async with agent.stream("POST", f"https://{HOST}/hold", headers=BEARER) as held:
                    chunks = held.aiter_raw()
                    assert await anext(chunks) == b"data: begun\n\n"
                    quick = await agent.get(f"https://{HOST}/", headers=BEARER)  # beside the held one
                    assert quick.content == b"data: 0\n\n"
                    host.go.set()
                    assert b"".join([chunk async for chunk in chunks]) == b"data: 0\n\n"
            assert stage.sockets == 1
            assert host.requests[0][b"authorization"] == b"Bearer " + KEY
            assert host.requests[0][b":path"] == b"/v1/chat?a=1"
            lines = await stage.logged(3)
            assert {(line["method"], line["status"], line["verdict"]) for line in lines} == {
                ("POST", 200, "allowed"),
                ("GET", 200, "allowed"),
            }
            assert max(int(str(line["sent_bytes"])) for line in lines) > 300_000

    asyncio.run(scene())


def test_a_host_without_http2_serves_many_streams_at_once_over_http1() -> None:
    async def scene() -> None:
        arrived = asyncio.Semaphore(0)

        async def together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                stage.heads.append(head)
                arrived.release()
                await all_here.wait()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n2\r\nok\r\n0\r\n\r\n"
                )
                await writer.drain()

        all_here = asyncio.Event()
        async with staged(service("query", "key")) as stage, stage.proxy() as proxy:
            await stage.host(together)
            async with client(stage, proxy) as agent:
                asks = [
                    asyncio.create_task(agent.get(f"https://{HOST}/s?key={STAND_IN}&n={n}")) for n in range(5)
                ]
                for _ in range(5):
                    await arrived.acquire()
                all_here.set()
                answers = await asyncio.gather(*asks)
                assert {(one.http_version, one.content, one.headers["x-a"]) for one in answers} == {
                    ("HTTP/2", b"ok", "b")
                }
                assert (await agent.post(f"https://{HOST}/s", content=b"body")).content == b"ok"
            assert stage.sockets == 5
            assert all(b"key=" + KEY + b"&n=" in head for head in stage.heads[:5])
            assert b"content-length: 4\r\n" in stage.heads[5]

    asyncio.run(scene())


def test_trailers_come_through_and_http1_agents_are_served_by_the_same_host() -> None:
    async def scene() -> None:
        host = H2Host()
        async with staged(bearer()) as stage:
            await stage.host(host, h2=True)
            agent = await Agent.on(stage)
            agent.ask("/grpc", [("te", "trailers")])
            events = await agent.until(h2.events.StreamEnded)
            (trailers,) = [event for event in events if isinstance(event, h2.events.TrailersReceived)]
            assert trailers.headers == [(b"grpc-status", b"0")]
            assert host.requests[0][b"te"] == b"trailers"
            await agent.close()

    asyncio.run(scene())


def test_a_stream_goes_on_when_the_host_ends_its_connection_and_the_next_one_gets_another() -> None:
    async def scene() -> None:
        host = H2Host()
        async with staged(bearer()) as stage, stage.proxy() as proxy:
            await stage.host(host, h2=True)
            async with client(stage, proxy) as agent, agent.stream("GET", f"https://{HOST}/goaway") as held:
                chunks = held.aiter_raw()
                assert await anext(chunks) == b"data: begun\n\n"
                assert (await agent.get(f"https://{HOST}/")).content == b"data: 0\n\n"
                host.go.set()
                assert b"".join([chunk async for chunk in chunks]) == b"data: 0\n\n"
            assert stage.sockets == 2

    asyncio.run(scene())


def test_a_key_stays_in_no_compression_table() -> None:
    async def scene() -> None:
        host = H2Host()
        async with staged(service("header", "x-api-key")) as stage:
            await stage.host(host, h2=True)
            agent = await Agent.on(stage)
            for _ in range(2):
                agent.ask("/", [("x-api-key", STAND_IN), ("x-long-lived", "header-of-its-own")])
                await agent.until(h2.events.StreamEnded)
            assert host.requests[1][b"x-api-key"] == KEY
            import gc

            from hpack.table import HeaderTable

            entries = [
                entry
                for one in gc.get_objects()
                if isinstance(one, HeaderTable)
                for entry in one.dynamic_entries
            ]
            assert any(name == b"x-long-lived" for name, _ in entries)
            assert not any(KEY in value for _, value in entries)
            await agent.close()

    asyncio.run(scene())


class Agent:
    """A client that can say what no decent one would."""

    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)

    @classmethod
    async def on(cls, stage: Stage) -> Agent:
        agent = cls(await stage.tunnel(h2=True))
        agent.h2.initiate_connection()
        agent.flush()
        return agent

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def ask(
        self,
        path: str = "/",
        extra: list[tuple[str, str]] | None = None,
        *,
        pseudo: list[tuple[str, str]] | None = None,
        ends: bool = True,
    ) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        usual = [(":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", path)]
        self.h2.send_headers(stream_id, [*(pseudo or usual), *(extra or [])], end_stream=ends)
        self.flush()
        return stream_id

    async def until(self, kind: type[h2.events.Event]) -> list[h2.events.Event]:
        """Return the events up to one of a kind, or to the end of the connection."""
        events: list[h2.events.Event] = []
        async with asyncio.timeout(10):
            while not any(isinstance(event, kind) for event in events):
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    break
                for event in self.h2.receive_data(data):
                    events.append(event)
                    if isinstance(event, h2.events.DataReceived) and event.stream_id:
                        self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
                self.flush()
        return events

    async def close(self) -> None:
        await hang_up(self.writer)


def usual(**changed: str) -> list[tuple[str, str]]:
    fields = {"method": "GET", "scheme": "https", "authority": HOST, "path": "/"} | changed
    return [(f":{name}", value) for name, value in fields.items()]


TRICKS: list[tuple[list[tuple[str, str]], list[tuple[str, str]]]] = [
    (usual(authority=OTHER), []),
    (usual(authority=f"{HOST}:444"), []),
    (usual(), [("host", OTHER)]),
    (usual(), [("host", HOST), ("host", OTHER)]),
    (usual()[:2] + usual()[3:], []),
    (usual(scheme="http"), []),
    (usual(method="CONNECT"), []),
    (usual(method="TRACE"), []),
    (usual(method="GET / HTTP/1.1\r\nX: y"), []),
    (usual(path=""), []),
    (usual(path="*"), []),
    (usual(path="x"), []),
    (usual(path=f"https://{OTHER}/"), []),
    (usual(path="/ HTTP/1.1\r\nHost: evil\r\n\r\nGET /"), []),
    (usual(path="/a b"), []),
    (usual(path="/a#b"), []),
    ([*usual(), (":path", "/other")], []),
    ([*usual(), (":protocol", "websocket")], []),
    ([*usual(), (":status", "200")], []),
    (usual(), [(":path", "/late")]),
    (usual(), [("transfer-encoding", "chunked")]),
    (usual(), [("connection", "keep-alive")]),
    (usual(), [("upgrade", "websocket")]),
    (usual(), [("te", "gzip")]),
    (usual(), [("content-length", "3"), ("content-length", "3")]),
    (usual(), [("content-length", "-1")]),
    (usual(), [("content-length", "5")]),
    (usual(), [("x", "a\r\nauthorization: Bearer y")]),
    (usual(), [("x", "a\nb")]),
    (usual(), [("x", "a\0b")]),
    (usual(), [("x", "a\x01b")]),
    (usual(), [("x\r\ny", "a")]),
    (usual(), [("x y", "a")]),
    (usual(), [("X-Upper", "a")]),
    (usual(), [("x:y", "a")]),
    (usual(), [("", "a")]),
    (usual(), [("x", " blank")]),
    (usual(), [("x", f"key {JOANS}")]),
]


@pytest.mark.parametrize(("pseudo", "extra"), TRICKS)
def test_what_http1_would_read_differently_is_refused(
    pseudo: list[tuple[str, str]], extra: list[tuple[str, str]]
) -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            agent = await Agent.on(stage)
            agent.ask(pseudo=pseudo, extra=[*extra, ("authorization", f"Bearer {STAND_IN}")])
            events = await agent.until(h2.events.StreamEnded)
            for event in events:
                if isinstance(event, h2.events.ResponseReceived):
                    assert int(dict(event.headers or ())[b":status"]) in {400, 403, 405, 421}
            await agent.close()
            (line,) = await stage.logged(1)
            assert line["verdict"] in {"protocol", "stand-in"}
            assert not stage.heads
            assert not stage.reads

    asyncio.run(scene())


def pings(agent: Agent) -> None:
    for _ in range(5000):
        agent.h2.ping(b"12345678")


def settings(agent: Agent) -> None:
    for number in range(3000):
        agent.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1000 + number})


def rapid_resets(agent: Agent) -> None:
    for _ in range(500):
        stream_id = agent.ask()
        agent.h2.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)


def empty_data(agent: Agent) -> None:
    stream_id = agent.ask(ends=False)
    for _ in range(3000):
        agent.h2.send_data(stream_id, b"")


def continuation(agent: Agent) -> None:
    agent.h2._data_to_send += b"\0\0\x01\x01\x00\0\0\0\x01\x82"
    for _ in range(1000):
        agent.h2._data_to_send += b"\0\x20\0\x09\0\0\0\0\x01" + b"\0\x01a\x7f\x80\x3f" + b"x" * 8186


def compression_bomb(agent: Agent) -> None:
    agent.ask(extra=[("x", "y" * 3000)] + [("x", "y" * 3000)] * 60)


def too_many_streams(agent: Agent) -> None:
    agent.h2.remote_settings.max_concurrent_streams = 1000
    agent.h2.remote_settings.acknowledge()
    for _ in range(200):
        agent.ask(ends=False)


def window_overflow(agent: Agent) -> None:
    agent.h2._data_to_send += (b"\0\0\x04\x08\0\0\0\0\0" + b"\x7f\xff\xff\xff") * 2


def priorities(agent: Agent) -> None:
    agent.h2._data_to_send += (b"\0\0\x05\x02\0\0\0\0\x01" + b"\0\0\0\0\x10") * 3000


def unknown_frames(agent: Agent) -> None:
    agent.h2._data_to_send += b"\0\0\0\xee\0\0\0\0\0" * 3000


def http1(agent: Agent) -> None:
    # As a frame's head it announces four megabytes, which are not waited for.
    agent.h2._data_to_send += get(extra=AUTH).encode() + b"x" * 100_000


GAMES = [pings, settings, rapid_resets, empty_data, continuation, compression_bomb]
GAMES += [too_many_streams, window_overflow, priorities, unknown_frames, http1]


@pytest.mark.parametrize("game", GAMES)
def test_a_flood_or_a_game_ends_its_own_connection_only(game: Callable[[Agent], None]) -> None:
    async def scene() -> None:
        host = H2Host()
        async with staged(bearer()) as stage, stage.proxy() as proxy:
            await stage.host(host, h2=True)
            agent = await Agent.on(stage)
            agent.ask()
            await agent.until(h2.events.StreamEnded)

            async def play() -> None:
                with contextlib.suppress(ConnectionError):
                    game(agent)
                    agent.flush()
                    await agent.writer.drain()

            playing = asyncio.create_task(play())
            await agent.until(h2.events.ConnectionTerminated)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await agent.close()
            async with asyncio.timeout(10):
                while not any("HTTP/2 misused" in str(line["why"]) for line in stage.log()):
                    await asyncio.sleep(0.01)
            async with client(stage, proxy) as other:
                assert (await other.get(f"https://{HOST}/", headers=BEARER)).content == b"data: 0\n\n"

    asyncio.run(scene())


def test_a_window_that_never_opens_and_an_idle_connection_end_in_time() -> None:
    async def scene() -> None:
        limits = Limits(head_s=1, idle_s=0.5, stuck_s=0.5, connect_s=3)
        async with staged(bearer(), limits=limits) as stage:
            await stage.host(H2Host(), h2=True)
            agent = await Agent.on(stage)
            agent.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
            agent.ask()
            events = await agent.until(h2.events.StreamReset)
            assert any(isinstance(event, h2.events.StreamReset) for event in events)
            events = await agent.until(h2.events.ConnectionTerminated)
            (ended,) = [event for event in events if isinstance(event, h2.events.ConnectionTerminated)]
            assert ended.error_code == h2.errors.ErrorCodes.NO_ERROR
            await agent.close()
            assert (await stage.logged(1))[0]["verdict"] == "cut"

    asyncio.run(scene())


def test_a_stream_that_the_agent_gives_up_ends_at_the_host_and_one_stuck_stream_stops_no_other() -> None:
    async def scene() -> None:
        given_up = asyncio.Event()

        async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if b"/pour" not in head:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    await writer.drain()
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                try:
                    while True:
                        writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                        await writer.drain()
                except ConnectionError:
                    given_up.set()
                    return

        async with staged(bearer()) as stage:
            await stage.host(pour)
            agent = await Agent.on(stage)
            agent.h2.increment_flow_control_window(1 << 20)
            held = agent.ask("/pour")
            await agent.until(h2.events.DataReceived)
            agent.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]
            for _ in range(3):
                quick = agent.ask("/quick")
                events = await agent.until(h2.events.StreamEnded)
                assert {event.stream_id for event in events if isinstance(event, h2.events.StreamEnded)} == {
                    quick
                }
            assert not given_up.is_set()
            agent.h2.reset_stream(held)
            agent.flush()
            async with asyncio.timeout(5):
                await given_up.wait()
            await agent.close()

    asyncio.run(scene())
