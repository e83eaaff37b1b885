"""What a user's message may tell the rehearsal model to play, so that tests need no other way in.

A directive is a line of its own, `[[rehearse: WHAT]]`, where WHAT is one of

| directive | the model |
| --- | --- |
| `tool NAME {JSON arguments}` | calls the tool NAME; after the tool's result it says `Tool said: …` |
| `slow SECONDS` | waits before its first byte, at most 600 s |
| `401`, `429`, `500` | answers with that status and an error of OpenAI's form |
| `cut` | breaks its answer off in the middle |
| `hostile` | answers with escape sequences, bidirectional overrides and a very long line |
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

_LINE = re.compile(r"^[ \t]*\[\[rehearse: (?P<what>[^\r\n]{1,8000})\]\][ \t]*\r?$", re.MULTILINE)
_TOOL = re.compile(r"tool (?P<name>[A-Za-z0-9_.-]{1,64}) (?P<arguments>\{.*\})")
_SLOW = re.compile(r"slow (?P<seconds>[0-9]{1,3}(?:\.[0-9]{1,3})?)")
_MOST_S = 600.0
_STATUSES = {"401": 401, "429": 429, "500": 500}


@dataclass(frozen=True)
class Play:
    """All that one message asks for; tool is a name and its arguments as JSON text."""

    slow_s: float = 0.0
    status: int = 200
    tool: tuple[str, str] | None = None
    cut: bool = False
    hostile: bool = False


def read(message: str) -> Play:
    """Return what message asks for; raises ValueError for a directive that is none of the table's."""
    slow_s, status, tool, cut, hostile = 0.0, 200, None, False, False
    for found in _LINE.finditer(message):
        what = found["what"]
        if what in _STATUSES:
            status = _STATUSES[what]
        elif what == "cut":
            cut = True
        elif what == "hostile":
            hostile = True
        elif (slow := _SLOW.fullmatch(what)) and float(slow["seconds"]) <= _MOST_S:
            slow_s = float(slow["seconds"])
        elif called := _TOOL.fullmatch(what):
            tool = (called["name"], _arguments(called["arguments"]))
        else:
            raise ValueError(f"there is no directive {what[:100]!r}")
    return Play(slow_s=slow_s, status=status, tool=tool, cut=cut, hostile=hostile)


def _arguments(text: str) -> str:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("a tool's arguments must be a JSON object") from None
    return json.dumps(found)


def without(message: str) -> str:
    """Return message without its directives."""
    return _LINE.sub("", message).strip()


def tokens(text: str) -> int:
    """Return a count of tokens: a quarter of the characters, as good as any for a stand-in."""
    return math.ceil(len(text) / 4)
