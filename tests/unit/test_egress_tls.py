"""Keys put in on the way out, over real TLS and HTTP/1.1: what a provider gets, and how long it lasts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl

import pytest
import websockets
from websockets.asyncio.client import connect as websocket
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets

from tests.unit.egress_stage import (
    AUTH,
    HOST,
    KEY,
    OTHER,
    SEARCH,
    STAND_IN,
    bearer,
    files_without,
    get,
    hang_up,
    server_context,
    service,
    staged,
)
from troupe_tasks.egress import policy as policies
from troupe_tasks.egress.control import Broker as Control
from troupe_tasks.egress.policy import EgressPolicy, HostRule, ServiceRule


def test_the_provider_gets_the_key_and_the_agent_keeps_the_stand_in() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            answer = await stage.ask(get("/v1/models?a=1", extra=AUTH))
            assert answer.startswith(b"HTTP/1.1 200 ")
            (head,) = stage.heads
            assert head.startswith(b"GET /v1/models?a=1 HTTP/1.1\r\n")
            assert b"\r\nauthorization: Bearer " + KEY + b"\r\n" in head
            assert STAND_IN.encode() not in head
            (line,) = await stage.logged(1)
            found = (line["method"], line["host"], line["status"], line["verdict"], line["origin"])
            assert found == ("GET", HOST, 200, "allowed", "service router")
            assert line["received_bytes"] == len(answer)
            assert files_without(stage.paths.state, KEY)
            assert files_without(stage.paths.logs("jane"), b"models")

    asyncio.run(scene())


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


PLACES = [
    (service("bearer"), get(extra=f"Authorization: bearer {STAND_IN}\r\n"), b"authorization: bearer " + KEY),
    (
        service("basic"),
        get(extra=f"Authorization: Basic {encoded('u:' + STAND_IN)}\r\n"),
        b"Basic " + base64.b64encode(b"u:" + KEY),
    ),
    (
        service("basic"),
        get(extra=f"Authorization: Basic {encoded(STAND_IN + ':')}\r\n"),
        b"Basic " + base64.b64encode(KEY + b":"),
    ),
    (service("header", "X-Api-Key"), get(extra=f"x-api-key: {STAND_IN}\r\n"), b"x-api-key: " + KEY),
    (service("query", "key"), get(f"/s?q=a%20b&key={STAND_IN}&z"), b"/s?q=a%20b&key=" + KEY + b"&z HTTP"),
    (service("query", "key"), get(f"/s?k%65y=%73{STAND_IN[1:]}"), b"/s?k%65y=" + KEY + b" HTTP"),
]


@pytest.mark.parametrize(("rule", "request_head", "expected"), PLACES)
def test_the_key_goes_into_the_declared_place(rule: ServiceRule, request_head: str, expected: bytes) -> None:
    async def scene() -> None:
        async with staged(rule) as stage:
            await stage.host(stage.http)
            assert (await stage.ask(request_head)).startswith(b"HTTP/1.1 200 ")
            assert expected in stage.heads[0]
            assert STAND_IN.encode() not in stage.heads[0]

    asyncio.run(scene())


ELSEWHERE = [
    get(f"/{STAND_IN}"),
    get(f"/?key={STAND_IN}"),
    get(extra=f"Cookie: a={STAND_IN}\r\n"),
    get(extra=f"Authorization: Basic {encoded('u:' + STAND_IN)}\r\n"),
    get(extra=f"Authorization: Bearer x{STAND_IN}\r\n"),
    get(extra=f"Authorization: Bearer {STAND_IN}, {STAND_IN}\r\n"),
    get(extra=f"X-Api-Key: {STAND_IN}\r\n"),
]


@pytest.mark.parametrize("request_head", ELSEWHERE)
def test_a_stand_in_anywhere_else_stays_one_and_no_key_is_read(request_head: str) -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            assert (await stage.ask(request_head)).startswith(b"HTTP/1.1 200 ")
            assert KEY not in stage.heads[0]
            assert not stage.reads
            control = Control(stage.paths)
            assert not (await asyncio.to_thread(control.outcome, "jane"))["router"].put_in

    asyncio.run(scene())


def test_a_body_and_an_answer_stream_both_ways_as_they_come() -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"first\r\n") == b"5\r\nfirst\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n")
            await go.wait()
            assert await reader.readuntil(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"
            writer.write(b"4\r\nlate\r\n0\r\n\r\n")
            await writer.drain()

        async with staged(bearer()) as stage:
            await stage.host(slow)
            reader, writer = await stage.tunnel()
            head = get(extra=AUTH + "Transfer-Encoding: chunked\r\n").replace("GET", "POST", 1)
            writer.write(head.encode() + b"5\r\nfirst\r\n")
            assert b"early" in await reader.readuntil(b"early\r\n")
            go.set()
            writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nlate\r\n0\r\n\r\n"
            await hang_up(writer)

    asyncio.run(scene())


def test_a_hosts_connection_is_kept_and_one_that_the_host_ended_is_replaced() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def two(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
            writer.close()
            await writer.wait_closed()
            ended.set()

        async with staged(bearer()) as stage:
            await stage.host(two)
            reader, writer = await stage.tunnel()
            for number in range(4):
                if number == 2:
                    await ended.wait()
                writer.write(get(close=False).encode())
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            assert stage.sockets == 2
            await hang_up(writer)
            assert len(await stage.logged(4)) == 4

    asyncio.run(scene())


def test_a_request_that_may_have_been_acted_on_is_never_sent_again() -> None:
    async def scene() -> None:
        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stage.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if len(stage.heads) == 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
                stage.heads.append(await reader.readuntil(b"\r\n\r\n"))
            # and then the host hangs up without a word

        async with staged(bearer()) as stage:
            await stage.host(once)
            reader, writer = await stage.tunnel()
            writer.write(get(close=False).encode())
            await reader.readuntil(b"ok")
            writer.write(get(close=False).encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
            assert len(stage.heads) == 2
            await hang_up(writer)

    asyncio.run(scene())


def test_a_new_key_is_used_by_the_next_request_while_an_old_stream_goes_on() -> None:
    async def scene() -> None:
        go = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            stage.heads.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")
            if b"/hold" in head:
                await go.wait()
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        async with staged(bearer()) as stage:
            await stage.host(hold)
            control = Control(stage.paths)
            reader, writer = await stage.tunnel()
            writer.write(get("/hold", extra=AUTH).encode())
            await reader.readuntil(b"begun\r\n")
            stage.keys["jane", "router"] = b"a-new-key"
            await stage.ask(get(extra=AUTH))
            assert KEY in stage.heads[1]  # for a minute at most, unless somebody says so
            await asyncio.to_thread(control.forget, "jane")
            await stage.ask(get(extra=AUTH))
            assert b"Bearer a-new-key\r\n" in stage.heads[2]
            go.set()
            assert await reader.readuntil(b"0\r\n\r\n")
            await hang_up(writer)

    asyncio.run(scene())


def test_a_changed_stand_in_is_taken_up_with_the_policy_and_keeps_the_tunnel() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            reader, writer = await stage.tunnel()
            changed = bearer(stand_in=SEARCH)
            policies.save(stage.paths, EgressPolicy(id="jane", rehearsal=False, services=(changed,)))
            await asyncio.to_thread(Control(stage.paths).reload)
            writer.write(get(extra=f"Authorization: Bearer {SEARCH}\r\n").encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert KEY in stage.heads[0]
            await hang_up(writer)

    asyncio.run(scene())


def test_tunnels_that_nobody_looked_into_end_when_the_agent_gets_a_service() -> None:
    async def scene() -> None:
        async with staged(hosts=(HostRule(host=HOST, origin="kit"),)) as stage:
            await stage.host(stage.http)
            status, (reader, writer) = await stage.connect()
            assert status == 200
            policies.save(stage.paths, EgressPolicy(id="jane", rehearsal=False, services=(bearer(),)))
            await asyncio.to_thread(Control(stage.paths).reload)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            await hang_up(writer)

    asyncio.run(scene())


def test_an_agent_without_services_keeps_its_own_tls() -> None:
    async def scene() -> None:
        async with staged(hosts=(HostRule(host=HOST, origin="kit"),)) as stage:
            await stage.host(stage.http)
            assert not (stage.paths.egress("jane") / "socket" / "ca.pem").exists()
            _, (reader, writer) = await stage.connect()
            from tests.unit.egress_stage import authority

            context = ssl.create_default_context()
            authority().configure_trust(context)
            await writer.start_tls(context, server_hostname=HOST)
            writer.write(get().encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await hang_up(writer)

    asyncio.run(scene())


def test_a_key_that_cannot_be_read_is_told_and_asked_for_once_only() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            stage.keys.clear()
            answers = await asyncio.gather(*(stage.ask(get(extra=AUTH)) for _ in range(5)))
            for answer in answers:
                assert answer.startswith(b"HTTP/1.1 502 ")
                assert b"troupe: the key for router can't be read; `troupe secret check jane`" in answer
            assert len(stage.reads) == 1
            assert not stage.heads
            assert {line["verdict"] for line in await stage.logged(5)} == {"key"}

    asyncio.run(scene())


@pytest.mark.parametrize("key", [b"two\r\nX-Injected: 1", b"nul\0", b" blank", b"caf\xc3\xa9", b""])
def test_a_key_that_could_not_stand_in_a_header_goes_nowhere(key: bytes) -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            stage.keys["jane", "router"] = key
            assert (await stage.ask(get(extra=AUTH))).startswith(b"HTTP/1.1 502 ")
            assert not stage.heads

    asyncio.run(scene())


def test_a_wrong_key_is_told_from_a_missing_one() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            control = Control(stage.paths)
            assert await asyncio.to_thread(control.outcome, "jane") == {}
            assert b" 401 " in await stage.ask(get("/refuse", extra=AUTH))
            found = (await asyncio.to_thread(control.outcome, "jane"))["router"]
            assert (found.status, found.put_in) == (401, True)
            assert b" 401 " in await stage.ask(get("/refuse", extra=f"X-Api-Key: {STAND_IN}\r\n"))
            found = (await asyncio.to_thread(control.outcome, "jane"))["router"]
            assert (found.status, found.put_in) == (401, False)
            whys = [line["why"] for line in await stage.logged(2)]
            assert whys == ["the key was put in; the provider refused it", ""]
            assert await asyncio.to_thread(control.outcome, "joan") == {}

    asyncio.run(scene())


def test_a_websocket_gets_its_key_and_then_carries_anything_both_ways() -> None:
    seen: list[str | None] = []

    async def talk(socket: ServerConnection) -> None:
        request = socket.request
        seen.append(request.headers.get("Authorization") if request else None)
        with contextlib.suppress(websockets.ConnectionClosed):
            async for message in socket:
                await socket.send(message)

    async def scene() -> None:
        async with staged(bearer()) as stage, stage.proxy() as proxy:
            async with serve_websockets(talk, "127.0.2.1", 0, ssl=server_context(HOST)) as server:
                stage.addresses[HOST] = "127.0.2.1"
                stage.ports["127.0.2.1"] = next(iter(server.sockets)).getsockname()[1]
                async with websocket(
                    f"wss://{HOST}/live",
                    proxy=proxy,
                    compression=None,
                    ssl=stage.trust(),
                    additional_headers={"Authorization": f"Bearer {STAND_IN}"},
                ) as socket:
                    for message in ("hello", "x" * 300_000, b"\0" * 100_000):
                        await socket.send(message)
                        assert await socket.recv() == message
            assert seen == [f"Bearer {KEY.decode()}"]
            (line,) = await stage.logged(1)
            assert (line["method"], line["status"], line["verdict"]) == ("GET", 101, "allowed")
            assert int(str(line["sent_bytes"])) > 400_000

    asyncio.run(scene())


def test_two_services_of_one_host_get_each_its_key() -> None:
    async def scene() -> None:
        search = service("header", "x-search", stand_in=SEARCH).model_copy(update={"service": "search"})
        async with staged(bearer(), search) as stage:
            await stage.host(stage.http)
            stage.keys["jane", "search"] = b"search-key"
            await stage.ask(get(extra=AUTH + f"X-Search: {SEARCH}\r\n"))
            assert b"authorization: Bearer " + KEY in stage.heads[0]
            assert b"x-search: search-key\r\n" in stage.heads[0]

    asyncio.run(scene())


def test_a_redirect_to_another_host_takes_no_key_along() -> None:
    async def scene() -> None:
        async def away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            answer = f"HTTP/1.1 307 Away\r\nLocation: https://{OTHER}/x\r\nContent-Length: 0\r\n\r\n"
            writer.write(answer.encode())
            await writer.drain()

        async with staged(bearer(), hosts=(HostRule(host=OTHER, origin="kit"),)) as stage:
            await stage.host(away)
            await stage.host(stage.http, OTHER)
            first = await stage.ask(get(extra=AUTH))
            assert b"ocation: https://files.example.org/x" in first
            second = await stage.ask(get("/x", host=OTHER, extra=AUTH), host=OTHER)
            assert second.startswith(b"HTTP/1.1 403 ")
            assert not stage.heads
            line = (await stage.logged(2))[1]
            assert (line["verdict"], line["host"]) == ("stand-in", OTHER)
            assert "router" in str(line["why"])
            assert (await stage.ask(get("/x", host=OTHER), host=OTHER)).startswith(b"HTTP/1.1 200 ")

    asyncio.run(scene())


def test_a_host_that_repeats_a_key_in_its_answers_headers_gives_none_away() -> None:
    async def scene() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 302 Away\r\nLocation: https://%s/?key=%s\r\nX-Seen: Bearer %s\r\nContent-Length: 0\r\n\r\n"
                % (HOST.encode(), KEY, KEY)
            )
            await writer.drain()

        async with staged(bearer()) as stage:
            await stage.host(echo)
            answer = await stage.ask(get(extra=AUTH))
            assert answer.startswith(b"HTTP/1.1 302 ")
            assert KEY not in answer
            assert answer.count(STAND_IN.encode()) == 2

    asyncio.run(scene())
