"""Read where a request wants to go, strictly: one spelling for each place, anything else is refused.

A name is dotted labels whose last begins with a letter, so that no odd spelling of an IP address (0x7f.1,
2130706433, 127.1) can pass for one. Addresses are the plain four numbers, or IPv6 in brackets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
_AUTHORITY = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,253})(?::(?P<port>[1-9][0-9]{0,4}))?"
)


@dataclass(frozen=True)
class Target:
    """A place on the network: a lower-case name or a plain address, and a port; path is for plain HTTP."""

    host: str
    port: int
    path: str = ""
    is_address: bool = False


def name(text: str) -> str:
    """Return a host name in its one spelling, or raise ValueError."""
    lowered = text.lower()
    if len(lowered) > 253 or not _NAME.fullmatch(lowered):
        raise ValueError("not a full host name")
    return lowered


def authority(text: str, *, default_port: int | None) -> Target:
    """Return the target that `host:port` names, or raise ValueError; without a default the port is needed."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise ValueError("not a host and a port")
    port = int(found["port"]) if found["port"] else default_port
    if port is None or port > 65535:
        raise ValueError("no usable port")
    host = found["host"]
    try:
        if host.startswith("["):
            return Target(str(IPv6Address(host[1:-1])), port, is_address=True)
        if host[-1].isdigit():
            return Target(str(IPv4Address(host)), port, is_address=True)
    except AddressValueError as error:
        raise ValueError("not a plain IP address") from error
    return Target(name(host), port)


def absolute(text: str) -> Target:
    """Return the target of an absolute-form request, `http://host[:port]/path`, or raise ValueError."""
    if not text.startswith("http://"):
        raise ValueError("not an http:// address; https goes by CONNECT")
    rest = text.removeprefix("http://")
    end = min((at for at in (rest.find(mark) for mark in "/?#") if at >= 0), default=len(rest))
    place = authority(rest[:end], default_port=80)
    path = rest[end:] or "/"
    if "#" in path:
        raise ValueError("a fragment does not belong in a request")
    return Target(place.host, place.port, path if path.startswith("/") else f"/{path}", place.is_address)
