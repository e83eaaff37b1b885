"""A model provider on this machine: real TLS by an authority of its own, OpenAI's form, one good key a service.

Its names lead here by a `sitecustomize.py` in the house's copy of the code, which gives the broker's process, and no
other, a network in which they do. Nothing of that is in troupe itself.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from troupe_tasks.rehearsal import reply

# Of the loopback network, one for each of the suite's workers: other than 127.0.0.1, so that port 443 is free on it.
PLACE = f"127.0.43.{1 + int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0').removeprefix('gw'))}"
MODEL, FILES, OTHER = "model.provider.example", "files.provider.example", "other.provider.example"
HOSTS = (MODEL, FILES, OTHER)
_SITE = '''\
"""Give the broker of the tests a network in which the provider's names lead to this machine."""

import sys

if sys.orig_argv[1:3] == ["-m", "troupe_tasks.egress.broker"]:
    import ssl

    from troupe_tasks.egress import outside

    real = outside.lookup

    def lookup(host, port):
        return ["{place}"] if host in {hosts!r} else real(host, port)

    def judge(address, real=outside.address.why_refused):
        return "" if address == "{place}" else real(address)

    def trust(speaks_h2):
        context = ssl.create_default_context(cafile="{bundle}")
        context.set_alpn_protocols(["h2", "http/1.1"] if speaks_h2 else ["http/1.1"])
        return context

    fields = outside.Outside.__dataclass_fields__
    defaults = list(outside.Outside.__init__.__defaults__)
    given = (("lookup", lookup), ("judge", judge), ("trust", trust), ("refuse_own", False))
    for name, value in given:
        defaults[[f for f in fields if f != "pool"].index(name)] = value
    outside.Outside.__init__.__defaults__ = tuple(defaults)
'''


@dataclass(frozen=True)
class Asked:
    """One request, as the provider saw it."""

    method: str
    host: str
    target: str
    headers: dict[str, str]

    def everything(self) -> str:
        """Return all that a key could be in but the body."""
        return "\n".join([self.target, *(f"{name}: {value}" for name, value in self.headers.items())])


@dataclass
class Provider:
    """What was asked, and the key that is good."""

    key: str
    asked: list[Asked] = field(default_factory=list)

    def saw(self, text: str) -> bool:
        """Tell whether any request held text."""
        return any(text in one.everything() for one in self.asked)


@contextmanager
def provider(code: Path, home: Path, *, key: str) -> Iterator[Provider]:
    """Run the provider, and have the broker of the house that code is for find it."""
    authority = trustme.CA(organization_name="a provider of the tests")
    bundle = home / "provider-authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*HOSTS).configure_cert(context)
    state = Provider(key)
    server = ThreadingHTTPServer((PLACE, 443), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    site = code / "sitecustomize.py"
    site.write_text(_SITE.format(place=PLACE, hosts=HOSTS, bundle=bundle), encoding="utf-8")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        site.unlink()
        bundle.unlink()


class _Handler(BaseHTTPRequestHandler):
    """Answers for the state that a subclass of it holds."""

    protocol_version = "HTTP/1.1"
    state: Provider

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def _serve(self, body: bytes) -> None:
        path = urlsplit(self.path)
        headers = dict(self.headers.items())
        self.state.asked.append(Asked(self.command, self.headers.get("Host", ""), self.path, headers))
        if path.path == "/redirect":
            self._send(302, {}, location=f"https://{OTHER}{parse_qs(path.query)['to'][0]}")
        elif not self._good():
            self._send(401, reply.BadRequest(401, "invalid_api_key", "Incorrect API key provided.").body())
        elif path.path.endswith("/chat/completions"):
            self._complete(reply.compose(body))
        else:
            self._send(200, reply.models() if path.path.endswith("/models") else {"ok": True})

    def _good(self) -> bool:
        given = [self.headers.get("Authorization", ""), *parse_qs(urlsplit(self.path).query).get("key", [])]
        return f"Bearer {self.state.key}" in given or self.state.key in given

    def _complete(self, answer: reply.Reply) -> None:
        if not answer.stream:
            self._send(200, answer.whole())
            return
        events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in answer.chunks()]
        self._send(200, b"".join([*events, b"data: [DONE]\n\n"]), kind="text/event-stream")

    def _send(self, status: int, answer: Any, *, kind: str = "application/json", location: str = "") -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass
