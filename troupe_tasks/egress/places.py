"""Put a key into the one place of a request that its service declares, and nowhere else."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import quote_from_bytes, unquote_to_bytes

from troupe_tasks.egress.headers import Pairs
from troupe_tasks.egress.messages import Ask
from troupe_tasks.egress.policy import Place

_CREDENTIALS = re.compile(rb"([A-Za-z]+)( +)([^ ]+)")
_USABLE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
TARGET = b":path"


def usable(key: bytes) -> bool:
    """Tell whether a key can stand in a header: printable ASCII, no blank at the ends."""
    return _USABLE.fullmatch(key) is not None


def put(request: Ask, place: Place, *, stand_in: bytes, key: bytes) -> Ask | None:
    """Return the request with key where exactly stand_in was, or None when it was not there."""
    if place.form == "query":
        return _in_query(request, place.name.encode(), stand_in=stand_in, key=key)
    name = place.name.lower().encode() if place.form == "header" else b"authorization"
    change = _CHANGES[place.form]
    headers = [
        (
            header,
            changed if header == name and (changed := change(value, stand_in, key)) is not None else value,
        )
        for header, value in request.headers
    ]
    if headers == request.headers:
        return None
    return replace(request, headers=headers, sensitive=request.sensitive | {name})


@dataclass(frozen=True)
class Swap:
    """What was put in, and in whose place."""

    stand_in: bytes
    key: bytes = field(repr=False)


def without(headers: Pairs, swaps: Iterable[Swap]) -> Pairs:
    """Return an answer's headers with no key in them: a host that repeats one, in a redirect say, gives none away."""
    for swap in swaps:
        forms = {swap.key: swap.stand_in, quote_from_bytes(swap.key, safe="").encode(): swap.stand_in}
        for form, stand_in in forms.items():
            headers = [(name, value.replace(form, stand_in)) for name, value in headers]
    return headers


def _whole(value: bytes, stand_in: bytes, key: bytes) -> bytes | None:
    return key if value == stand_in else None


def _bearer(value: bytes, stand_in: bytes, key: bytes) -> bytes | None:
    found = _CREDENTIALS.fullmatch(value)
    if found is None or found[1].lower() != b"bearer" or found[3] != stand_in:
        return None
    return found[1] + found[2] + key


def _basic(value: bytes, stand_in: bytes, key: bytes) -> bytes | None:
    found = _CREDENTIALS.fullmatch(value)
    if found is None or found[1].lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(found[3], validate=True).partition(b":")
    except binascii.Error:
        return None
    if stand_in not in {user, password}:
        return None
    user, password = (key if part == stand_in else part for part in (user, password))
    return found[1] + found[2] + base64.b64encode(user + colon + password)


_CHANGES: dict[str, Callable[[bytes, bytes, bytes], bytes | None]] = {
    "header": _whole,
    "bearer": _bearer,
    "basic": _basic,
}


def _in_query(request: Ask, name: bytes, *, stand_in: bytes, key: bytes) -> Ask | None:
    path, mark, query = request.target.partition(b"?")
    parts = query.split(b"&")
    for number, part in enumerate(parts):
        said, _, value = part.partition(b"=")
        if _decoded(said) == name and _decoded(value) == stand_in:
            parts[number] = said + b"=" + quote_from_bytes(key, safe="").encode()
    changed = path + mark + b"&".join(parts)
    if changed == request.target:
        return None
    return replace(request, target=changed, sensitive=request.sensitive | {TARGET})


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))
