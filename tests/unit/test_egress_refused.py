"""What never gets out with a key: the proofs, each refused and logged over real sockets and real TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.egress_stage import (
    AUTH,
    BARE,
    HOST,
    JOANS,
    KEY,
    OTHER,
    QUICK,
    STAND_IN,
    authority,
    bearer,
    get,
    hang_up,
    server_context,
    staged,
)
from troupe_tasks.egress import address
from troupe_tasks.egress.policy import HostRule
from troupe_tasks.egress.target import Target

KIT = (HostRule(host=OTHER, ports=(80, 443), origin="kit"),)


def quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


def forms(stand_in: str) -> list[str]:
    basic = base64.b64encode(f"{stand_in}:x".encode()).decode()
    unpadded = base64.urlsafe_b64encode(f"u:{stand_in}".encode()).decode().rstrip("=")
    return [
        get(extra=f"Authorization: Bearer {stand_in}\r\n"),
        get(extra=f"Authorization: Basic {basic}\r\n"),
        get(extra=f"X-Other: BASIC {unpadded}\r\n"),
        get(extra=f"Cookie: session=1; key={stand_in}\r\n"),
        get(extra=f"X-Anything: before{stand_in}after\r\n"),
        get(f"/{stand_in}/x"),
        get(f"/?a=b&key={quoted(stand_in)}"),
        get(f"/?a={quoted(quoted(stand_in))}"),
    ]


@pytest.mark.parametrize("request_head", forms(JOANS))
def test_another_agents_stand_in_is_refused_wherever_it_is(request_head: str) -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            answer = await stage.ask(request_head)
            assert answer.startswith(b"HTTP/1.1 403 ")
            (line,) = await stage.logged(1)
            assert (line["verdict"], line["status"]) == ("stand-in", 403)
            assert "router" in str(line["why"])
            assert JOANS not in str(line)
            assert not stage.heads
            assert not stage.reads

    asyncio.run(scene())


@pytest.mark.parametrize("request_head", forms(STAND_IN))
def test_a_stand_in_to_a_host_that_is_not_its_services_is_refused(request_head: str) -> None:
    async def scene() -> None:
        async with staged(bearer(), hosts=KIT) as stage:
            await stage.host(stage.http, OTHER)
            request = request_head.replace(f"Host: {HOST}", f"Host: {OTHER}")
            assert (await stage.ask(request, host=OTHER)).startswith(b"HTTP/1.1 403 ")
            assert (await stage.logged(1))[0]["verdict"] == "stand-in"
            assert not stage.heads

    asyncio.run(scene())


@pytest.mark.parametrize("stand_in", [STAND_IN, JOANS])
def test_plain_http_carries_no_stand_in_and_never_a_key(stand_in: str) -> None:
    async def scene() -> None:
        async with staged(bearer(), hosts=KIT) as stage:
            reader, writer = await stage.agent()
            request = f"GET http://{OTHER}/ HTTP/1.1\r\nHost: {OTHER}\r\nX-Key: {stand_in}\r\n\r\n"
            writer.write(request.encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
            assert (await stage.logged(1))[0]["verdict"] == "stand-in"
            await hang_up(writer)
            # Nor does a service's host let plain HTTP through at all.
            reader, writer = await stage.agent()
            writer.write(f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
            await hang_up(writer)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("place", "status"),
    [
        (f"{HOST}:22", 403),
        (f"{HOST}:80", 403),
        (f"{HOST}:8443", 403),
        (f"{BARE}:443", 403),
        ("203.0.113.7:443", 403),
        ("93.184.216.34:443", 403),
        ("[2606:4700:4700::1111]:443", 403),
        ("[::ffff:93.184.216.34]:443", 403),
        ("[::1]:443", 403),
        ("0x7f.1:443", 400),
        ("2130706433:443", 400),
        (f"{HOST}.:443", 400),
    ],
)
def test_a_tunnel_elsewhere_is_refused(place: str, status: int) -> None:
    async def scene() -> None:
        async with staged(bearer(), hosts=KIT) as stage:
            host, _, port = place.rpartition(":")
            found, (_, writer) = await stage.connect(host, int(port))
            assert found == status
            assert (await stage.logged(1))[0]["verdict"] in {"policy", "protocol"}
            await hang_up(writer)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "found", ["10.0.0.1", "::1", "::ffff:93.184.216.34", "fd00:ec2::254", "169.254.169.254"]
)
def test_a_name_that_turns_private_between_two_requests_is_refused(found: str) -> None:
    async def scene() -> None:
        asked: list[str] = []

        def lookup(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.1.1"] if len(asked) == 1 else [found]

        def judge(one: str) -> str:
            return "" if one == "127.0.1.1" else address.why_refused(one)

        async with staged(bearer(), lookup=lookup, judge=judge) as stage:
            await stage.host(stage.http)
            assert (await stage.ask(get(extra=AUTH))).startswith(b"HTTP/1.1 200 ")
            assert stage.broker is not None
            stage.broker._machine.outside.recent.clear()  # what five seconds do
            status, (_, writer) = await stage.connect()
            assert status == 403
            assert (await stage.logged(2))[1]["verdict"] == "address"
            assert len(stage.heads) == 1
            await hang_up(writer)

    asyncio.run(scene())


def test_open_lets_a_public_address_through_but_looks_into_it() -> None:
    async def scene() -> None:
        async with staged(bearer(), mode="open") as stage:
            stage.addresses["93.184.216.34"] = "93.184.216.34"
            context = server_context("93.184.216.34")
            stage.addresses[BARE] = "127.0.1.9"
            await stage.host(stage.http, BARE, cert=context)
            stage.ports["93.184.216.34"] = stage.ports["127.0.1.9"]
            status, (_, writer) = await stage.connect("93.184.216.34", 80)
            assert status == 403
            await hang_up(writer)
            assert await stage.ask(get(host=BARE), host=BARE)  # the certificate is another's: told inside
            assert (await stage.logged(2))[1]["verdict"] == "certificate"

    asyncio.run(scene())


def test_tls_that_asks_for_another_host_than_the_tunnel_is_refused() -> None:
    async def scene() -> None:
        async with staged(bearer(), hosts=KIT) as stage:
            await stage.host(stage.http)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await stage.tunnel(HOST, sni=OTHER)
            (line,) = await stage.logged(1)
            assert (line["status"], line["verdict"]) == (421, "protocol")
            status, (_, writer) = await stage.connect()
            assert status == 200
            context = stage.trust()
            context.check_hostname = False
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await writer.start_tls(context, server_hostname="")  # none at all
            assert (await stage.logged(2))[1]["status"] in {400, 421}
            assert not stage.heads

    asyncio.run(scene())


INSIDE = [
    (get(host=OTHER, extra=AUTH), 421),
    (get(host=f"{HOST}:444", extra=AUTH), 421),
    (get(host=f"{HOST}@{OTHER}", extra=AUTH), 421),
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/1.0\r\n\r\n", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nHost: {OTHER}\r\n{AUTH}\r\n", 400),
    (f"GET https://{OTHER}/ HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n", 400),
    (f"GET http://{HOST}/ HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n", 400),
    (f"GET /a b HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n", 400),
    (f"GET /a#b HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n", 400),
    (f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n", 405),
    (f"TRACE / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}\r\n", 405),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
    (
        f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    (f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}Transfer-Encoding\x0b: chunked\r\n\r\n0\r\n\r\n", 400),
    (f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", 400),
    (f"POST / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}Content-Length: +4\r\n\r\nabcd", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\n{AUTH}Connection: host\r\n\r\n", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: a\rHost: {OTHER}\r\n{AUTH}\r\n", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: a\nHost: {OTHER}\r\n{AUTH}\r\n", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: a\0b\r\n{AUTH}\r\n", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX : a\r\n{AUTH}\r\n", 400),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\n folded: a\r\n{AUTH}\r\n", 421),
    (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: {'y' * 40_000}\r\n{AUTH}\r\n", 431),
]


@pytest.mark.parametrize(("request_head", "status"), INSIDE)
def test_what_could_be_read_in_two_ways_is_refused_inside_tls_too(request_head: str, status: int) -> None:
    async def scene() -> None:
        async with staged(bearer(), hosts=KIT) as stage:
            await stage.host(stage.http)
            answer = await stage.ask(request_head)
            assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:60]
            (line,) = await stage.logged(1)
            assert (line["status"], line["verdict"], line["host"]) == (status, "protocol", HOST)
            assert not stage.heads
            assert not stage.reads

    asyncio.run(scene())


def odd_certificate(kind: str) -> ssl.SSLContext:
    """Return a host's context that must not be trusted."""
    if kind == "another authority":
        return server_context(HOST, ca=trustme.CA())
    if kind == "wrong name":
        return server_context(OTHER)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    ends = now - timedelta(days=1) if kind == "expired" else now + timedelta(days=1)
    issuer = x509.load_pem_x509_certificate(authority().cert_pem.bytes())
    signer = serialization.load_pem_private_key(authority().private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    own_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    names = x509.SubjectAlternativeName(
        [x509.DNSName(HOST)] if kind != "common name only" else [x509.DNSName(OTHER)]
    )
    made = (
        x509.CertificateBuilder(
            own_name if kind == "self-signed" else issuer.subject, own_name, key.public_key()
        )
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(ends)
        .add_extension(names, critical=False)
        .sign(key if kind == "self-signed" else signer, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with trustme.Blob(private + pem).tempfile() as path:
        context.load_cert_chain(path)
    return context


@pytest.mark.parametrize(
    "kind", ["expired", "self-signed", "wrong name", "another authority", "common name only"]
)
def test_a_host_whose_certificate_is_not_good_gets_nothing(kind: str) -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http, cert=odd_certificate(kind))
            answer = await stage.ask(get(extra=AUTH))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"the host's certificate is not good: " in answer
            (line,) = await stage.logged(1)
            assert line["verdict"] == "certificate"
            assert not stage.heads
            assert not stage.reads

    asyncio.run(scene())


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE"])
def test_no_variable_changes_whom_the_broker_trusts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from troupe_tasks.egress import tls

    with authority().cert_pem.tempfile() as path:
        monkeypatch.setenv(variable, path)
        context = tls.client_context(["http/1.1"])
        assert not context.keylog_filename
        ours = x509.load_pem_x509_certificate(authority().cert_pem.bytes()).subject.rfc4514_string()
        assert ours not in str(context.get_ca_certs())
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname


def test_a_host_with_old_tls_only_or_none_is_refused() -> None:
    async def scene() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(b"220 mail.example.org\r\n")
                await reader.read()
            writer.close()

        async with staged(bearer()) as stage:
            stage.addresses[HOST] = "127.0.1.1"
            server = await asyncio.start_server(greet, "127.0.1.1", 0)
            stage.ports["127.0.1.1"] = server.sockets[0].getsockname()[1]
            assert (await stage.ask(get(extra=AUTH))).startswith(b"HTTP/1.1 502 ")
            assert not stage.reads
            server.close()

    asyncio.run(scene())


def test_half_a_handshake_ends_at_its_deadline_and_garbage_at_once() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            for opening, status in (
                (b"\x16\x03\x01\x02\x00\x01", 408),
                (b"SSH-2.0-x\r\n", 400),
                (b"GET / HTTP/1.1\r\n\r\n", 400),
            ):
                found, (reader, writer) = await stage.connect()
                assert found == 200
                writer.write(opening)
                async with asyncio.timeout(QUICK.head_s + 3):
                    with contextlib.suppress(ConnectionResetError):
                        await reader.read()
                await hang_up(writer)
                assert [line["status"] for line in stage.log()][-1] == status
            assert {line["verdict"] for line in stage.log()} == {"protocol"}

    asyncio.run(scene())


def test_a_slow_head_inside_tls_is_cut_off() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            reader, writer = await stage.tunnel()

            async def dribble() -> None:
                with contextlib.suppress(OSError):
                    for char in get("/" + "x" * 1000):
                        writer.write(char.encode())
                        await asyncio.sleep(0.02)

            slowly = asyncio.create_task(dribble())
            async with asyncio.timeout(QUICK.head_s + 3):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
            slowly.cancel()
            await hang_up(writer)
            assert not stage.heads

    asyncio.run(scene())


def test_old_tls_foreign_protocols_and_renegotiation_do_not_get_in() -> None:
    async def scene() -> None:
        async with staged(bearer()) as stage:
            await stage.host(stage.http)
            _, (_, writer) = await stage.connect()
            old = stage.trust()
            old.set_ciphers("ALL:@SECLEVEL=0")
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                old.minimum_version = ssl.TLSVersion.TLSv1
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await writer.start_tls(old, server_hostname=HOST)
            _, (reader, writer) = await stage.connect()
            odd = stage.trust()
            odd.set_alpn_protocols(["spdy/3", "x" * 200])
            await writer.start_tls(odd, server_hostname=HOST)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            writer.write(get(extra=AUTH).encode())  # no protocol agreed on is HTTP/1.1
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await hang_up(writer)
            assert stage.broker is not None
            context = await stage.broker._machine.authority.context(Target(HOST, 443))
            assert context.options & ssl.OP_NO_RENEGOTIATION
            assert KEY in stage.heads[0]

    asyncio.run(scene())
