"""Registries on this machine: Debian's docker-registry as it is, one that is cut off, and one that lies."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest

from troupe_tasks.kits import oci
from troupe_tasks.secret import Secret

needs_registry = pytest.mark.skipif(
    shutil.which("docker-registry") is None, reason="needs the package docker-registry"
)
USER, TOKEN = "reader", "open-sesame-0123456789"
# bcrypt of TOKEN with the least cost, as `htpasswd -B` writes it.
_HTPASSWD = f"{USER}:$2b$04$ERBiUDz5QaCNYLB1yvv5JupeeS2f9CvBWJpaiMoht8gR/H1JAiV6.\n"


def nobody(place: str) -> NoReturn:
    raise AssertionError(f"a token was asked for {place}")


def somebody(place: str) -> Secret:
    return Secret(f"{USER}:{TOKEN}".encode())


@contextmanager
def registry(folder: Path, *, private: bool = False, port: int = 0) -> Iterator[str]:
    """Yield HOST:PORT of a real registry whose content lies in a folder, and end it."""
    folder.mkdir(exist_ok=True)
    settings: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of the tests"},
    }
    if private:
        (folder / "htpasswd").write_text(_HTPASSWD, encoding="ascii")
        settings["auth"] = {"htpasswd": {"realm": "kits", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(settings), encoding="ascii")
    process = subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = ""
        while (listening := re.search(r"listening on ([0-9.:]+)", said)) is None:
            said = process.stderr.readline()
            assert said, "docker-registry ended at once"
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        rest.start()
        yield listening[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@contextmanager
def cut_off(place: str, *, after_bytes: int) -> Iterator[str]:
    """Yield HOST:PORT of a registry that dies in the middle: each connection ends after some bytes of answers."""
    host, _, port = place.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_forward, args=(server, (host, int(port)), after_bytes), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def _forward(server: socket.socket, to: tuple[str, int], left: int) -> None:
    with suppress(OSError):  # the test is over
        while True:
            near, _ = server.accept()
            far = socket.create_connection(to)
            with near, far, suppress(OSError):
                asked = threading.Thread(target=_pump, args=(near, far), daemon=True)
                asked.start()
                while (data := far.recv(min(4096, max(left, 1)))) and left > 0:
                    near.sendall(data)
                    left -= len(data)
                near.shutdown(socket.SHUT_RDWR)
                asked.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)


@dataclass
class Seen:
    """What a lying registry was asked: method, path and the Authorization header of each request."""

    place: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Reply:
    """What it answers: a status, headers, and a body, or what writes one."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Callable[[Callable[[bytes], object]], None] = b""


@contextmanager
def lying(answer: Callable[[str, str, str], Reply]) -> Iterator[Seen]:
    """Yield a registry that answers what it likes: answer(method, path, authorization) says what."""
    seen = Seen()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            asked = (self.command, self.path, self.headers.get("Authorization", ""))
            seen.asked.append(asked)
            found = answer(*asked)
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            if isinstance(found.body, bytes) and "Content-Length" not in found.headers:
                self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            with suppress(OSError):
                if callable(found.body):
                    found.body(self.wfile.write)
                elif self.command != "HEAD":
                    self.wfile.write(found.body)

        do_GET = do_HEAD = do_POST = do_PUT = _any  # noqa: N815 - http.server looks for these

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        seen.place = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


def forwarding(place: str) -> Callable[[str, str, str], Reply]:
    """Return what a registry that only looks on answers: what the one at place says."""

    def answer(method: str, path: str, authorization: str) -> Reply:
        far = HTTPConnection(place, timeout=30)
        given = {"Accept": oci.MANIFEST_TYPE, **({"Authorization": authorization} if authorization else {})}
        with closing(far):
            far.request(method, path, headers=given)
            said = far.getresponse()
            kept = {
                name: value for name, value in said.getheaders() if name not in ("Date", "Content-Encoding")
            }
            return Reply(said.status, kept, said.read())

    return answer


_KIT = """\
name = "{name}"
version = "{version}"
summary = "a kit for a test"
egress = []

[image]
suite = "trixie"
packages = ["python3"]
python = "3.13"

[sizes]
cpus = 1
memory_mib = 512
storage_mib = 1024

[commands]
chat = ["chat"]
turn = ["turn", "{{message}}"]
self_test = ["turn", "{{message}}", "{{usage}}"]
gateway = ["gateway"]
"""


def a_kit(within: Path, *, version: str = "1.2.3", soul: str = "be still\n", name: str = "mime") -> Path:
    """Make a kit's folder anew and return it."""
    folder = within / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "managed").mkdir(parents=True)
    (folder / "kit.toml").write_text(_KIT.format(name=name, version=version), encoding="utf-8")
    (folder / "requirements.lock").write_text("hermes-agent==1.0\n", encoding="ascii")
    (folder / "SOUL.md").write_text(soul, encoding="utf-8")
    return folder
