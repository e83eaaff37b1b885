"""The newest release at an address, over TLS that is checked."""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks import releases
from troupe_tasks.errors import ReleaseFailed

SCRIPT = b"#!/bin/sh\n"


@dataclass
class Site:
    """What the address has: an answer's status, and its body or where it leads."""

    address: str = ""
    files: dict[str, tuple[int, bytes]] = field(default_factory=dict)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = made.files.get(self.path.removeprefix("/at/"), (404, b""))
            self.send_response(status)
            if status in {302, 307}:
                self.send_header("Location", body.decode())
                body = b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            pass

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.address = f"https://localhost:{server.server_port}/at"
        yield made
        server.shutdown()


def test_the_newest_version_is_what_the_address_names(site: Site) -> None:
    site.files["VERSION"] = (200, b"1.2.3\n")
    assert releases.newest(site.address) == "1.2.3"


@pytest.mark.parametrize(
    "said", [b"", b"1.2", b"v1.2.3", b"1.2.3\n\n", b"1.2.3 ", b"<html>", b"\xff", b"1.2.3\n4"]
)
def test_a_version_that_is_none_is_told(site: Site, said: bytes) -> None:
    site.files["VERSION"] = (200, said)
    with pytest.raises(ReleaseFailed, match="names no version"):
        releases.newest(site.address)


def test_more_than_a_version_is_cut_off(site: Site) -> None:
    site.files["VERSION"] = (200, b"1" * ((1 << 20) + 1))
    with pytest.raises(ReleaseFailed, match="more than 1048576 bytes"):
        releases.newest(site.address)


def test_an_address_without_a_release_is_told(site: Site) -> None:
    site.files["VERSION"] = (404, b"<p>nothing here</p>" * 100)
    with pytest.raises(ReleaseFailed, match=r"has no VERSION \(it answered 404\)"):
        releases.newest(site.address)


def test_a_redirect_is_followed_within_https(site: Site) -> None:
    site.files |= {"VERSION": (302, b"/at/here"), "here": (307, b"there"), "there": (200, b"2.0.0")}
    assert releases.newest(site.address) == "2.0.0"


def test_a_redirect_that_leaves_https_is_not(site: Site) -> None:
    site.files["VERSION"] = (302, b"http://localhost/VERSION")
    with pytest.raises(ReleaseFailed, match="leads from https to http"):
        releases.newest(site.address)


def test_redirects_have_an_end(site: Site) -> None:
    site.files["VERSION"] = (302, b"VERSION")
    with pytest.raises(ReleaseFailed, match="without an end"):
        releases.newest(site.address)


def test_plain_http_is_refused_even_here() -> None:
    with pytest.raises(ReleaseFailed, match="no https address"):
        releases.newest("http://localhost:1/at")


def test_an_address_whose_certificate_nobody_trusts_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ReleaseFailed, match="no certificate that this machine trusts"):
        releases.newest(site.address)


def test_the_installer_is_proved_by_its_sum(site: Site) -> None:
    total = hashlib.sha256(SCRIPT).hexdigest()
    other = hashlib.sha256(b"").hexdigest()
    site.files |= {
        "install.sh": (200, SCRIPT), "SHA256SUMS": (200, f"{other}  VERSION\n{total}  install.sh\n".encode()),
    }  # fmt: skip
    assert releases.installer(site.address) == SCRIPT


@pytest.mark.parametrize(
    "sums", ["", "{other}  install.sh\n", "{total}  not-install.sh\n", "{total}  install.sh\n" * 2]
)
def test_an_installer_without_its_own_sum_is_refused(site: Site, sums: str) -> None:
    told = sums.format(total=hashlib.sha256(SCRIPT).hexdigest(), other=hashlib.sha256(b"x").hexdigest())
    site.files |= {"install.sh": (200, SCRIPT), "SHA256SUMS": (200, told.encode())}
    with pytest.raises(ReleaseFailed, match="not the one that its SHA256SUMS names"):
        releases.installer(site.address)


@given(st.lists(st.integers(0, 999_999), min_size=6, max_size=6))
def test_versions_are_compared_as_numbers(parts: list[int]) -> None:
    one, other = parts[:3], parts[3:]
    shown = [".".join(map(str, numbers)) for numbers in (one, other)]
    assert releases.is_newer(shown[0], shown[1]) == (one > other)
