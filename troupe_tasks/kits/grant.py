"""What opens a registry: nothing first, then a token that stands for nobody, then the operator's own, asked once.

A registry says on a 401 how it is opened (RFC 9110, WWW-Authenticate): by a user's name and token at each request,
or by a token for the one thing asked, which another address gives out. Docker's settings and keyrings are never
read: a public kit needs none, and a private one's token is typed for each command.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, StringConstraints

from troupe_tasks.errors import RegistryFailed
from troupe_tasks.kits import https, oci
from troupe_tasks.secret import Secret

Login = Callable[[str], Secret]
"""Asks a person for the token of a registry, which it is given the name of."""

_CAP_BYTES = 64 << 10
_PART = re.compile(r'(realm|service)="([^"\\]{1,1000})"')
# What registries take that care for the token alone.
_NAMELESS = "token"
_Given = Annotated[str, StringConstraints(min_length=1, max_length=16384, pattern=r"^[!-~]+$")]


class _Answer(BaseModel):
    """What gives out tokens answers; it may say more (Docker's token specification)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    token: _Given | None = None
    access_token: _Given | None = None


@dataclass(frozen=True)
class Challenge:
    """How a registry wants to be opened."""

    scheme: Literal["basic", "bearer"]
    realm: str
    service: str


@dataclass
class Purse:
    """What one command may show to one registry; the operator's token is asked when it is first needed."""

    place: str
    login: Login = field(repr=False)
    _own: Secret | None = field(default=None, repr=False)

    @property
    def asked(self) -> bool:
        """Tell whether the operator's token was asked already."""
        return self._own is not None

    def basic(self) -> str:
        """Return the Authorization header with the operator's name and token."""
        if self._own is None:
            self._own = self.login(self.place)
        user, token = parted(self._own)
        return f"Basic {base64.b64encode(b':'.join((user.encode(), token.reveal()))).decode('ascii')}"


def parted(given: Secret) -> tuple[str, Secret]:
    """Return the user's name and the token of USER:TOKEN, or of the token alone."""
    user, colon, token = given.reveal().partition(b":")
    return (user.decode(), Secret(token)) if colon else (_NAMELESS, given)


def challenge(answer: https.Answer, place: str) -> Challenge:
    """Return how a registry that said 401 is opened; raises RegistryFailed for a way unknown here."""
    text = answer.headers.get("www-authenticate", "")
    scheme = text.partition(" ")[0].lower()
    parts = dict(_PART.findall(text))
    if scheme == "basic":
        return Challenge("basic", "", "")
    if scheme == "bearer" and "realm" in parts:
        return Challenge("bearer", parts["realm"], parts.get("service", ""))
    raise RegistryFailed(f"{place} wants to be opened in a way that troupe does not know")


def bearer(
    wanted: Challenge, scope: str, *, basic: str | None, asker: https.Url, deadline_s: float
) -> str | None:
    """Return the Authorization header with a token for one scope, or None when none is given out.

    basic stands for the operator; without it the token stands for nobody.
    """
    asked = urlencode([("service", wanted.service), ("scope", scope)])
    try:
        giver = asker.to(f"{wanted.realm}{'&' if '?' in wanted.realm else '?'}{asked}")
    except ValueError as error:
        raise RegistryFailed(
            f"{asker.place} names no place that gives out its tokens", cause=str(error)
        ) from error
    request = https.Request("GET", giver, headers={"Authorization": basic} if basic else {})
    answer = https.exchange(request, cap_bytes=_CAP_BYTES, deadline_s=deadline_s)
    if answer.status in (400, 401, 403):
        return None
    if answer.status != 200:
        raise RegistryFailed(
            f"{giver.place}, which gives out the registry's tokens, answered {answer.status}"
        )
    given = oci.read(_Answer, answer.body, what=f"the token that {giver.place} gave out")
    token = given.token or given.access_token
    return f"Bearer {token}" if token else None
