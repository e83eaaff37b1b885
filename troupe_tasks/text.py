"""Make untrusted text safe to show: no byte of a sandbox reaches a terminal or a log as it came."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Cc and Cf hold escape sequences and bidirectional overrides; Cs, Co and Cn have no agreed look;
# Zl and Zp break lines behind a reader's back.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escape(text: str | bytes, *, keep_newlines: bool = True) -> str:
    r"""Return text in which every character that could steer a terminal is written as \xNN or \uNNNN.

    Bytes are decoded as UTF-8, each bad byte becoming \xNN. Newlines and tabs stay, unless told otherwise.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="backslashreplace")
    kept = "\n\t" if keep_newlines else ""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in kept or unicodedata.category(c) not in _HIDDEN else _code(c) for c in text)


def _code(char: str) -> str:
    point = ord(char)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def clip(text: str, limit: int) -> str:
    """Return text cut to limit characters in all, saying how many were left out where that takes less than half."""
    if len(text) <= limit:
        return text
    kept = limit - len(f"… ({len(text)} more characters)")
    if kept < limit // 2:
        return f"{text[: limit - 1]}…"
    return f"{text[:kept]}… ({len(text) - kept} more characters)"


def line(text: str | bytes, limit: int = 200) -> str:
    """Return untrusted text as one safe line of bounded length."""
    return clip(escape(text, keep_newlines=False), limit)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a plain table, columns padded to their widest cell."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
    return "\n".join(lines)
