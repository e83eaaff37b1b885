"""What of a message's headers goes on: end-to-end ones only (RFC 9110, section 7.6.1), framed anew by h11."""

from __future__ import annotations

from collections.abc import Iterable

import h11

from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.target import Target, absolute, authority
from troupe_tasks.egress.verdict import Refusal

Pairs = list[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization",
        b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def check(headers: Pairs, *, status: int, limits: Limits) -> None:
    """Refuse, with status, headers that two readers could understand differently, or too many of them."""
    if len(headers) > limits.head_count:
        raise Refusal(status, "protocol", "too many headers")
    if _values(headers, b"transfer-encoding") and _values(headers, b"content-length"):
        raise Refusal(status, "protocol", "both Content-Length and Transfer-Encoding")
    if nominated(headers) & _FRAMING:
        raise Refusal(status, "protocol", "Connection names a header that frames the message")
    if any(byte < 0x20 and byte != 0x09 for _, value in headers for byte in value):
        raise Refusal(status, "protocol", "a control character in a header")


def nominated(headers: Pairs) -> frozenset[bytes]:
    """Return the header names that Connection says are for this hop alone."""
    return frozenset(
        part.strip().lower() for value in _values(headers, b"connection") for part in value.split(b",")
    )


def onward(headers: Pairs) -> Pairs:
    """Return the headers that go on to the next hop; a chunked body stays chunked."""
    dropped = _HOP_BY_HOP | nominated(headers)
    kept = [(key, value) for key, value in headers if key not in dropped]
    if _values(headers, b"transfer-encoding"):
        kept.append((b"transfer-encoding", b"chunked"))
    return kept


def wanted(request: h11.Request, *, limits: Limits) -> Target:
    """Return where a request wants to go, or refuse it: bad form, or a Host that says something else."""
    headers = list(request.headers)
    check(headers, status=400, limits=limits)
    try:
        text = request.target.decode("ascii")
        hosts = _values(headers, b"host")
        if request.method == b"CONNECT":
            if _values(headers, b"content-length") or _values(headers, b"transfer-encoding"):
                raise ValueError("CONNECT has no body")
            place = authority(text, default_port=None)
        elif text.startswith("/") or text == "*":
            raise ValueError("this is a proxy: set http_proxy and name the host in the request")
        else:
            place = absolute(text)
        for host in hosts:
            said = authority(
                host.decode("ascii"), default_port=place.port if request.method == b"CONNECT" else 80
            )
            if (said.host, said.port) != (place.host, place.port):
                raise ValueError("Host and the request's target disagree")
    except ValueError as error:
        why = "not plain ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Refusal(400, "protocol", why) from None
    return place
