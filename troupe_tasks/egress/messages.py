"""A request and its answer as both versions of HTTP say them, and the two sides of an exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from troupe_tasks.egress.headers import Pairs
from troupe_tasks.egress.verdict import Refusal

Body = Literal["none", "length", "chunked"]  # length: as the Content-Length among the headers says


@dataclass(frozen=True)
class Ask:
    """A request: where to, and its end-to-end headers, without Host, names in lower case.

    sensitive names the headers (":path" for the target) into which a key was put. A request's repr shows no header.
    """

    method: bytes
    authority: bytes
    target: bytes
    headers: Pairs
    body: Body
    upgrade: bool = False  # to a WebSocket
    sensitive: frozenset[bytes] = frozenset()

    def __repr__(self) -> str:
        """Return what may be shown of it."""
        return f"Ask({self.method!r}, {self.authority!r})"


@dataclass(frozen=True)
class Head:
    """An answer's beginning, its headers end-to-end ones."""

    status: int
    headers: Pairs
    reason: bytes = b""


@dataclass(frozen=True)
class End:
    """The end of a body; trailers exist between two sides that speak HTTP/2."""

    trailers: tuple[tuple[bytes, bytes], ...] = ()


Piece = bytes | End


class Asking(Protocol):
    """The agent's side of one exchange; its figures count what crossed its connection or stream so far."""

    @property
    def received_bytes(self) -> int:
        """Return what the agent sent."""

    @property
    def sent_bytes(self) -> int:
        """Return what the agent was sent."""

    async def receive(self) -> Piece:
        """Return the next piece of the request's body; raises Cut when the agent is gone."""

    async def gone(self) -> None:
        """Return or raise Cut once the agent hangs up, or asks something else, after its request."""

    async def answer(self, head: Head) -> None:
        """Begin the answer; raises Cut."""

    async def send(self, piece: Piece) -> None:
        """Send the next piece of the answer; raises Cut."""

    async def refuse(self, refusal: Refusal) -> None:
        """Answer in the host's place, unless an answer began already; raises Cut."""


class Answering(Protocol):
    """The host's side of one exchange."""

    async def ask(self, request: Ask) -> None:
        """Send a request's beginning; raises Cut."""

    async def send(self, piece: Piece) -> None:
        """Send the next piece of the request's body; raises Cut, which an answer that came early explains."""

    async def head(self) -> Head:
        """Return the answer's beginning; raises Cut, TimeoutError, or Refusal for one that can't be passed on."""

    async def receive(self) -> Piece:
        """Return the next piece of the answer; raises Cut or TimeoutError."""
