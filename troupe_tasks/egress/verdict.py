"""Say why a request goes no further: the one exception that the broker's rooms pass to the street."""

from __future__ import annotations

from typing import Literal

Verdict = Literal[
    "allowed", "policy", "address", "protocol", "stand-in", "key", "certificate", "unreachable", "busy", "cut"
]


class Refusal(Exception):
    """The broker answers a request itself: with an HTTP status, a verdict for the log, and the reason."""

    def __init__(self, status: int, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.verdict: Verdict = verdict
        self.why = why


class Cut(Exception):
    """A conversation ended in the middle: there is nobody, or nothing valid, to answer any more."""
