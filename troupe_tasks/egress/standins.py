"""Know every agent's stand-ins, and find them in a request wherever somebody might have put them.

Bodies are not searched: they may be large, compressed or encrypted, and a stand-in is not a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from troupe_tasks.egress.messages import Ask
from troupe_tasks.egress.policy import EgressPolicy
from troupe_tasks.egress.verdict import Refusal

_BASIC = re.compile(rb"basic +([A-Za-z0-9+/_-]{16,})", re.IGNORECASE)
_TO_PLAIN_BASE64 = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True)
class StandIn:
    """Whose a stand-in is, and for which service."""

    agent_id: str
    service: str


class Table:
    """All stand-ins of this machine."""

    def __init__(self, policies: Iterable[EgressPolicy] = ()) -> None:
        self._owners = {
            rule.stand_in.encode(): StandIn(policy.id, rule.service)
            for policy in policies
            for rule in policy.services
        }
        self._pattern = re.compile(_any_of(sorted(self._owners))) if self._owners else None

    def seen(self, request: Ask) -> frozenset[StandIn]:
        """Return the stand-ins in a request's target and headers: plain, percent-encoded, or inside Basic."""
        if self._pattern is None:
            return frozenset()
        parts = [request.target, *(name + b": " + value for name, value in request.headers)]
        text = b"\n".join(parts)
        texts = [text, *_decoded(text)]
        for found in _BASIC.finditer(text):
            texts.append(inside := _from_base64(found[1]))
            texts += _decoded(inside)
        return frozenset(self._owners[found] for one in texts for found in self._pattern.findall(one))


def judge(found: frozenset[StandIn], agent_id: str, *, at_home: frozenset[str]) -> None:
    """Refuse a request with another agent's stand-in, or one that goes to a host of none of its services.

    at_home names the services whose hosts the request goes to, over TLS.
    """
    for one in sorted(found, key=lambda one: (one.agent_id, one.service)):
        if one.agent_id != agent_id:
            raise Refusal(403, "stand-in", f"this is another agent's stand-in for {one.service}")
        if one.service not in at_home:
            raise Refusal(
                403, "stand-in", f"the stand-in for {one.service} is for its own hosts only, over TLS"
            )


def _decoded(text: bytes) -> list[bytes]:
    """Return what text says once and twice percent-decoded, where that says something else."""
    found: list[bytes] = []
    for _ in range(2):
        if b"%" not in text or (plain := unquote_to_bytes(text)) == text:
            break
        found.append(plain)
        text = plain
    return found


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.translate(_TO_PLAIN_BASE64) + b"=" * (-len(text) % 4))
    except binascii.Error:
        return b""


def _any_of(words: Sequence[bytes]) -> bytes:
    """Return a pattern for any of the sorted words, longest first, that looks at common beginnings once.

    Provider's keys begin alike, so a plain `a|b|c` would try each of hundreds at every position.
    """
    if len(words) == 1:
        return re.escape(words[0])
    shared = 0
    while words[0][shared : shared + 1] and words[0][shared] == words[-1][shared]:
        shared += 1
    rest = [word[shared:] for word in words]
    ends_here = rest[0] == b""
    groups: dict[int, list[bytes]] = {}
    for word in rest[ends_here:]:
        groups.setdefault(word[0], []).append(word)
    branches = b"|".join(_any_of(group) for group in groups.values())
    return re.escape(words[0][:shared]) + b"(?:" + branches + b")" + (b"?" if ends_here else b"")
