"""A key in memory: never shown, never copied by accident, overwritten when it is done with.

Python may have made copies on the way in (an immutable str, a pipe's buffer), which nobody can overwrite: so
a process that holds keys also leaves no core behind (`no_core_dumps`).
"""

from __future__ import annotations

import ctypes
import hmac
import os
import resource
import unicodedata
from types import TracebackType
from typing import Final, NoReturn, Self

from troupe_tasks.errors import UsageError

LIMIT_BYTES: Final = 4096
_SHOWN: Final = "Secret(…)"
# What a paste from a web page brings along unseen, beside control characters: none belongs to a key.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_PR_SET_DUMPABLE: Final = 4  # prctl(2)


class Secret:
    """Some bytes that no repr, str, format, pickle, copy or dump of a model gives away."""

    __slots__ = ("_held",)
    __hash__ = None  # type: ignore[assignment]  # it would tell two keys apart without a look at them

    def __init__(self, data: bytes | bytearray) -> None:
        self._held: bytearray | None = None
        self._held = bytearray(data)

    @classmethod
    def typed(cls, text: str) -> Self:
        """Return what a person typed or piped as a secret. Raises UsageError, which never shows it."""
        data = text.encode("utf-8", errors="surrogatepass")
        if fault := fault_of(data):
            raise UsageError(f"that can't be a key: {fault}", hint="Copy it again, whole and alone.")
        return cls(data)

    def reveal(self) -> bytes:
        """Return the bytes, for the one use. Raises ValueError once it was wiped."""
        if self._held is None:
            raise ValueError("this secret was wiped")
        return bytes(self._held)

    def wipe(self) -> None:
        """Overwrite the bytes; there is nothing to reveal after that."""
        if self._held is not None:
            self._held[:] = bytes(len(self._held))
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()

    def __del__(self) -> None:
        self.wipe()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.reveal(), other.reveal())

    def __repr__(self) -> str:
        return _SHOWN

    def __format__(self, _spec: str) -> str:
        return _SHOWN

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret is neither copied nor pickled")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a secret is neither copied nor pickled")


def fault_of(data: bytes) -> str:
    """Return what keeps bytes from being a key, without showing any of them; empty when nothing does."""
    if not data:
        return "it is empty"
    if len(data) > LIMIT_BYTES:
        return f"it has {len(data)} bytes, and at most {LIMIT_BYTES} are allowed"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not text"
    if len(text.splitlines()) > 1:
        return "it has more than one line"
    if text != text.strip():
        return "it begins or ends with a blank or a line's end"
    if any(unicodedata.category(char) in _HIDDEN for char in text):
        return "it holds a control character or an invisible one"
    return ""


def no_core_dumps() -> None:
    """Keep this process from leaving a core, and other processes of its user from reading its memory.

    setrlimit(2), and prctl(2) PR_SET_DUMPABLE, which a core that is piped to a program heeds too.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
