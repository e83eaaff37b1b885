"""One request to a registry: capped, with one deadline, over TLS that is checked."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from troupe_tasks.errors import RegistryFailed
from troupe_tasks.kits import https
from troupe_tasks.kits.https import Request, exchange, url

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kind: a\r\n\r\nhi"


@contextmanager
def serving(answer: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port of a server that has one thing to say to each connection."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, _ = server.accept()
                with link, suppress(OSError):
                    secured = context.wrap_socket(link, server_side=True) if context else link
                    secured.recv(65536)
                    answer(secured)
                    secured.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def get(port: int, *, cap_bytes: int = 1000, deadline_s: float = 20) -> https.Answer:
    return exchange(
        Request("GET", url(f"http://127.0.0.1:{port}/v2/")), cap_bytes=cap_bytes, deadline_s=deadline_s
    )


def saying(data: bytes) -> Callable[[socket.socket], None]:
    return lambda link: link.sendall(data)


def for_ever(head: bytes, more: bytes) -> Callable[[socket.socket], None]:
    def say(link: socket.socket) -> None:
        link.sendall(head)
        while True:  # until the other side hangs up
            link.sendall(more)

    return say


def drip(link: socket.socket) -> None:
    link.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        link.sendall(b"a")
        time.sleep(0.05)


def test_an_answer_comes_back_whole() -> None:
    with serving(saying(FINE)) as port:
        answer = get(port)
    assert (answer.status, answer.headers["x-kind"], answer.body) == (200, "a", b"hi")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (for_ever(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536), "more than 1000 bytes"),
        (for_ever(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 65536), "more than 1000 bytes"),
        (for_ever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), "more than 1000 bytes"),
        (for_ever(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n"), "broke its answer off"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi"), "broke its answer off"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Le"), "broke its answer off"),
        (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), "broke its answer off"),
        (saying(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), "broke its answer off"),
        (saying(b""), "broke its answer off"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_told(answer: Callable[[socket.socket], None], told: str) -> None:
    with serving(answer) as port, pytest.raises(RegistryFailed, match=told):
        get(port)


@pytest.mark.parametrize(
    "answer",
    [
        lambda link: link.recv(1),
        drip,
        for_ever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
    ids=["silence", "a drip", "hints for ever"],
)
def test_the_deadline_is_for_the_whole_exchange(answer: Callable[[socket.socket], None]) -> None:
    before = time.monotonic()
    with serving(answer) as port, pytest.raises(RegistryFailed, match=r"within 0\.4 s"):
        get(port, deadline_s=0.4)
    assert time.monotonic() - before < 5


def test_nobody_there_is_told() -> None:
    with serving(saying(FINE)) as port:
        pass
    with pytest.raises(RegistryFailed, match="can't be reached"):
        get(port)


@pytest.mark.parametrize(
    "text",
    [
        "http://registry.example/v2/", "http://10.0.0.1/", "ftp://registry.example/", "https://", "//x/", "x",
        "https://a@registry.example/", "https://registry.example:99999/",
        "https://registry.example/a b", "https://registry.example/\x7f", "https://r\u0435gistry.example/", "http://[fe80::1]/",
    ],
)  # fmt: skip
def test_an_address_that_may_not_be_asked_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        url(text)


def test_an_answer_leads_from_https_to_https_alone() -> None:
    at = url("https://registry.example/v2/a/blobs/b?x=1")
    assert at.to("../c?y") == https.Url(secure=True, host="registry.example", port=443, target="/v2/a/c?y")
    assert at.to("https://storage.example:8443/z").origin == (True, "storage.example", 8443)
    for text in ("http://127.0.0.1/x", "http://registry.example/x", "file:///etc/passwd"):
        with pytest.raises(ValueError):
            at.to(text)


def test_localhost_that_leads_elsewhere_is_not_asked_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket.getpeername
    with serving(saying(FINE)) as port:
        monkeypatch.setattr(
            socket.socket, "getpeername", lambda link: ("192.0.2.1", real(link)[1]), raising=False
        )
        with pytest.raises(RegistryFailed, match="can't be reached"):
            get(port)


def test_no_repr_shows_a_token() -> None:
    request = Request("GET", url("https://registry.example/"), headers={"Authorization": "Basic c2VjcmV0"})
    assert "c2VjcmV0" not in repr(request)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """Return an authority that stands among the system's, on a network where *.example is this machine."""
    found = trustme.CA()
    found.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    real = socket.getaddrinfo

    def lookup(host: str, port: int, **given: Any) -> Any:
        return real("127.0.0.1" if host.endswith(".example") else host, port, **given)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return found


def served_by(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_https_is_spoken_with_whom_the_system_trusts(authority: trustme.CA) -> None:
    with serving(saying(FINE), served_by(authority, "registry.example")) as port:
        request = Request("GET", url(f"https://registry.example:{port}/"))
        assert exchange(request, cap_bytes=100, deadline_s=20).body == b"hi"


@pytest.mark.parametrize("case", ["another name", "another authority"])
def test_a_certificate_that_does_not_prove_it_is_refused(authority: trustme.CA, case: str) -> None:
    context = (
        served_by(authority, "other.example")
        if case == "another name"
        else served_by(trustme.CA(), "registry.example")
    )
    with serving(saying(FINE), context) as port, pytest.raises(RegistryFailed, match="no certificate"):
        exchange(Request("GET", url(f"https://registry.example:{port}/")), cap_bytes=100, deadline_s=20)
