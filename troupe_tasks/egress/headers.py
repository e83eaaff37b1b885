"""What of a message's headers goes on: end-to-end ones only (RFC 9110, section 7.6.1), framed anew on the way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.verdict import Refusal

Pairs = list[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization",
        b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return every value of a header."""
    return [value for key, value in headers if key == name]


def size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return about how many bytes headers take."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


def check(headers: Pairs, *, status: int, limits: Limits) -> None:
    """Refuse, with status, headers that two readers could understand differently, or too many of them."""
    if len(headers) > limits.head_count or size(headers) > limits.head_bytes:
        raise Refusal(431 if status == 400 else status, "protocol", "too many headers, or too large ones")
    if values(headers, b"transfer-encoding") and values(headers, b"content-length"):
        raise Refusal(status, "protocol", "both Content-Length and Transfer-Encoding")
    if nominated(headers) & _FRAMING:
        raise Refusal(status, "protocol", "Connection names a header that frames the message")
    if any(_CONTROL.search(value) for _, value in headers):
        raise Refusal(status, "protocol", "a control character in a header")


def nominated(headers: Pairs) -> frozenset[bytes]:
    """Return the header names that Connection says are for this hop alone."""
    return frozenset(
        part.strip().lower() for value in values(headers, b"connection") for part in value.split(b",")
    )


def onward(headers: Pairs) -> Pairs:
    """Return the headers that go on to the next hop."""
    dropped = _HOP_BY_HOP | nominated(headers)
    return [(key, value) for key, value in headers if key not in dropped]


def is_websocket(headers: Pairs) -> bool:
    """Tell whether a message asks for, or agrees to, a WebSocket."""
    wanted = [value.strip().lower() for value in values(headers, b"upgrade")]
    return wanted == [b"websocket"] and b"upgrade" in nominated(headers)


def refusal_body(refusal: Refusal) -> bytes:
    """Return what the broker answers itself: OpenAI's error form, with nothing in it but our own words."""
    error = {"message": f"troupe: {refusal.why}", "type": f"egress_{refusal.verdict}"}
    return json.dumps({"error": error}).encode() + b"\n"
