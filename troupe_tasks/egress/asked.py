"""Read a request strictly, in each of the three ways in which an agent can ask.

To the proxy in plain HTTP, inside a tunnel over HTTP/1.1, and inside a tunnel over HTTP/2. What two readers could
read differently is refused here, since the next hop may speak another version of HTTP.
"""

from __future__ import annotations

import re

import h11

from troupe_tasks.egress import headers
from troupe_tasks.egress.headers import Pairs
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.messages import Ask, Body
from troupe_tasks.egress.policy import TLS_PORT
from troupe_tasks.egress.target import Target, absolute, authority
from troupe_tasks.egress.verdict import Refusal

_TOKEN = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,256}")
_METHOD = re.compile(rb"[A-Z0-9!#$%&'*+.^_`|~-]{1,20}")
_PATH = re.compile(rb"/[!-\"$-~]*")  # printable ASCII, no blank, no fragment
# CONNECT opens a tunnel inside the tunnel; TRACE shows the sender every header as the host got it, keys too.
_NOT_INSIDE = frozenset({b"CONNECT", b"TRACE", b"TRACK", b"PRI"})
_BODILESS = frozenset({b"GET", b"HEAD", b"OPTIONS", b"DELETE"})
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})


def wanted(request: h11.Request, *, limits: Limits) -> Target:
    """Return where a request to the proxy wants to go, or refuse it: bad form, or a Host that says another."""
    fields = list(request.headers)
    headers.check(fields, status=400, limits=limits)
    try:
        text = request.target.decode("ascii")
        if request.method == b"CONNECT":
            if headers.values(fields, b"content-length") or headers.values(fields, b"transfer-encoding"):
                raise ValueError("CONNECT has no body")
            place = authority(text, default_port=None)
        elif text.startswith("/") or text == "*":
            raise ValueError("this is a proxy: set http_proxy and name the host in the request")
        else:
            place = absolute(text)
        default_port = place.port if request.method == b"CONNECT" else 80
        for host in headers.values(fields, b"host"):
            if not _is(host, place, default_port=default_port):
                raise ValueError("Host and the request's target disagree")
    except ValueError as error:
        why = "not plain ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Refusal(400, "protocol", why) from None
    return place


def plainly(request: h11.Request, place: Target) -> Ask:
    """Return a plain request to place, which wanted() found good."""
    fields = list(request.headers)
    said = headers.values(fields, b"host")
    name = place.host if place.port == 80 else f"{place.host}:{place.port}"
    return Ask(
        request.method,
        said[0] if said else name.encode(),
        place.path.encode(),
        _end_to_end(fields),
        _body(fields),
    )


def inside(request: h11.Request, place: Target, *, limits: Limits) -> Ask:
    """Return a request that came inside a tunnel to place over HTTP/1.1, or refuse it."""
    fields = list(request.headers)
    headers.check(fields, status=400, limits=limits)
    target = bytes(request.target)
    if request.method in _NOT_INSIDE:
        raise Refusal(405, "protocol", "this method is not for here")
    if not (_PATH.fullmatch(target) or (target == b"*" and request.method == b"OPTIONS")):
        raise Refusal(400, "protocol", "inside TLS a request names a path alone")
    said = headers.values(fields, b"host")
    if len(said) != 1:
        raise Refusal(400, "protocol", "one Host header is needed")
    _same(said[0], place)
    upgrade = headers.is_websocket(fields) and request.method == b"GET" and request.http_version == b"1.1"
    body = _body(fields)
    if upgrade and body != "none":
        raise Refusal(400, "protocol", "an upgrade with a body")
    return Ask(request.method, said[0], target, _end_to_end(fields), body, upgrade=upgrade)


def spoken(fields: Pairs, place: Target, *, has_body: bool, limits: Limits) -> Ask:
    """Return a request that came inside a tunnel to place over HTTP/2, or refuse it (RFC 9113, section 8)."""
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    pairs = [pair for pair in fields if not pair[0].startswith(b":")]
    if len(pseudo) + len(pairs) != len(fields) or not pseudo.keys() <= _PSEUDO:
        raise Refusal(400, "protocol", "a pseudo-header twice, or one that is not known")
    method = pseudo.get(b":method", b"")
    if method in _NOT_INSIDE or not _METHOD.fullmatch(method):
        raise Refusal(405, "protocol", "this method is not for here")
    path = pseudo.get(b":path", b"")
    if not (_PATH.fullmatch(path) or (path == b"*" and method == b"OPTIONS")):
        raise Refusal(400, "protocol", "the path is not a path")
    if pseudo.get(b":scheme") != b"https":
        raise Refusal(400, "protocol", "inside TLS the scheme is https")
    said = [*([pseudo[b":authority"]] if b":authority" in pseudo else []), *headers.values(pairs, b"host")]
    if not said:
        raise Refusal(400, "protocol", "an authority is needed")
    for one in said:
        _same(one, place)
    _refuse_smuggling(pairs, limits=limits)
    length = headers.values(pairs, b"content-length")
    body: Body = "none" if not has_body else "length" if length else "chunked"
    if not has_body and any(int(one) for one in length):
        raise Refusal(400, "protocol", "Content-Length announces a body that does not come")
    if not has_body and method not in _BODILESS and not length:
        pairs.append((b"content-length", b"0"))
    kept = [
        (name, value) for name, value in pairs if name not in {b"host", b"expect", b"proxy-authorization"}
    ]
    return Ask(method, said[0], path, kept, body)


def _refuse_smuggling(pairs: Pairs, *, limits: Limits) -> None:
    """Refuse what would mean something else, or nothing good, once it is said over HTTP/1.1."""
    headers.check(pairs, status=400, limits=limits)
    for name, value in pairs:
        if not _TOKEN.fullmatch(name):
            raise Refusal(400, "protocol", "a header's name is not one")
        if value != value.strip(b" \t"):
            raise Refusal(400, "protocol", "a header's value has blanks around it")
        if name in {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}:
            raise Refusal(400, "protocol", "HTTP/2 has no headers for one hop")
        if name == b"te" and value.lower() != b"trailers":
            raise Refusal(400, "protocol", "HTTP/2 has no transfer codings")
    length = headers.values(pairs, b"content-length")
    if len(length) > 1 or not all(re.fullmatch(rb"[0-9]{1,18}", one) for one in length):
        raise Refusal(400, "protocol", "Content-Length is not one number")


def _end_to_end(fields: Pairs) -> Pairs:
    return [pair for pair in headers.onward(fields) if pair[0] != b"host"]


def _body(fields: Pairs) -> Body:
    if headers.values(fields, b"transfer-encoding"):
        return "chunked"
    return "length" if headers.values(fields, b"content-length") else "none"


def _is(host: bytes, place: Target, *, default_port: int) -> bool:
    """Tell whether a Host header means place; raises ValueError."""
    said = authority(host.decode("ascii"), default_port=default_port)
    return (said.host, said.port) == (place.host, place.port)


def _same(host: bytes, place: Target) -> None:
    try:
        is_same = _is(host, place, default_port=TLS_PORT)
    except ValueError:
        is_same = False
    if not is_same:
        raise Refusal(421, "protocol", "this tunnel leads to another host than the request names")
