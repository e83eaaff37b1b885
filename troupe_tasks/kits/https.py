"""One HTTP request and its answer, on a connection of its own: capped, with one deadline over all of it.

Nothing is followed, remembered or taken from elsewhere: no redirect, cookie, ~/.netrc or Docker settings. https
with the system's authorities; plain http only where the other end is this machine itself.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

import h11

from troupe_tasks import __version__
from troupe_tasks.errors import RegistryFailed
from troupe_tasks.text import line

_CHUNK_BYTES = 64 << 10
_HEAD_CAP_BYTES = 32 << 10
_TEXT = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Url:
    """An http or https address, taken apart; target is the path with its query."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def origin(self) -> tuple[bool, str, int]:
        """Return whose address it is: a token for one origin goes to no other."""
        return self.secure, self.host, self.port

    @property
    def place(self) -> str:
        """Return host and port as a person writes them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def to(self, text: str) -> Url:
        """Return the address that a reference in an answer from here leads to; raises ValueError."""
        scheme = "https" if self.secure else "http"
        found = url(urljoin(f"{scheme}://{self.place}{self.target}", text))
        if not found.secure and self.secure:
            raise ValueError("it leads from https to http")
        return found


def url(text: str) -> Url:
    """Return an address taken apart; raises ValueError for one that is no https, nor http on this machine."""
    parts = urlsplit(text)
    host, port = parts.hostname, parts.port
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or not _TEXT.fullmatch(text):
        raise ValueError("it is no plain http or https address")
    secure = parts.scheme == "https"
    if not secure and not loopback(host):
        raise ValueError("plain http is for this machine alone")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(secure, host, port or (443 if secure else 80), target)


def loopback(host: str) -> bool:
    """Tell whether a host is this machine by its spelling alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Request:
    """What is asked; its headers may hold a token, so no repr shows them."""

    method: str
    url: Url
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Answer:
    """What came back, whole; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def exchange(request: Request, *, cap_bytes: int, deadline_s: float) -> Answer:
    """Return the answer to one request; raises RegistryFailed for one that is late, cut, too large or no HTTP."""
    place = request.url.place
    until = time.monotonic() + deadline_s
    try:
        with _connection(request.url, until) as link:
            return _converse(request, link, until, cap_bytes)
    except TimeoutError as error:
        raise RegistryFailed(f"{place} did not answer within {deadline_s:g} s") from error
    except ssl.SSLCertVerificationError as error:
        raise RegistryFailed(
            f"{place} has no certificate that this machine trusts", cause=line(error.verify_message)
        ) from error
    except (OSError, UnicodeError) as error:  # a host name may be none
        raise RegistryFailed(f"{place} can't be reached", cause=line(str(error))) from error
    except h11.RemoteProtocolError as error:
        raise RegistryFailed(
            f"{place} broke its answer off, or it is no HTTP", cause=line(str(error))
        ) from error


@contextmanager
def _connection(to: Url, until: float) -> Iterator[socket.socket]:
    link = _connected(to, until)
    with closing(link):
        if not to.secure:
            if not loopback(link.getpeername()[0]):  # whatever `localhost` may have been made to mean
                raise OSError("plain http is for this machine alone")
            yield link
            return
        link.settimeout(_left_s(until))
        with ssl.create_default_context().wrap_socket(link, server_hostname=to.host) as secured:
            yield secured


def _connected(to: Url, until: float) -> socket.socket:
    """Connect to the first address that takes it; the deadline is for all of them together."""
    failed: OSError = OSError("it has no address")
    # The system's resolver has deadlines of its own (resolv.conf(5)).
    for family, kind, protocol, _, address in socket.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM):
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(_left_s(until))
            link.connect(address)
        except OSError as error:
            link.close()
            failed = error
        else:
            return link
    raise failed


def _left_s(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _converse(request: Request, link: socket.socket, until: float, cap_bytes: int) -> Answer:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_CAP_BYTES)
    headers = {
        "Host": request.url.place, "User-Agent": f"troupe/{__version__}", "Accept-Encoding": "identity",
        "Connection": "close", "Content-Length": str(len(request.body)), **request.headers,
    }  # fmt: skip
    said = http.send(
        h11.Request(method=request.method, target=request.url.target, headers=list(headers.items()))
    )
    said = (
        (said or b"")
        + (http.send(h11.Data(data=request.body)) or b"")
        + (http.send(h11.EndOfMessage()) or b"")
    )
    link.settimeout(_left_s(until))
    link.sendall(said)
    head: h11.Response | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            link.settimeout(_left_s(until))
            http.receive_data(link.recv(_CHUNK_BYTES))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > cap_bytes:
                raise RegistryFailed(f"{request.url.place} sent more than {cap_bytes} bytes, and was cut off")
        elif head is not None and isinstance(event, h11.EndOfMessage):
            found = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
            return Answer(head.status_code, found, bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("it ended before it had begun")
