"""Faults in the calls by which troupe changes anything: one fails, or the process ends there.

The calls are those of os that reach below the given folder, and those that the stand-ins announce by step(). A kill
is an exception that nothing catches; from then on no call changes anything, so that no clean-up of a process that
would be dead reaches the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_BY_HANDLE = ("write", "fsync")
_BY_PATH = ("replace", "rename", "mkdir")
# These fail on no full disk; but a process may end at them as well.
_ONLY_KILLED = ("unlink", "rmdir")


class Killed(BaseException):
    """The process has ended here."""


class Faults:
    """What befalls the calls on what is below a folder."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = str(folder)
        self._fails_at = self._fails_until = self._dies_at = self._code = 0
        self.seen, self.dead, self.what, self._dies_in = 0, False, "", ""
        for name in (*_BY_HANDLE, *_BY_PATH, *_ONLY_KILLED):
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def off(self) -> None:
        """Let everything pass."""
        self._fails_at = self._dies_at = self.seen = 0
        self.dead, self.what = False, ""

    @contextmanager
    def fail(self, number: int, code: int, *, and_all_after: bool = False) -> Iterator[None]:
        """Have the Nth write, sync, rename or new folder fail with a code."""
        self.off()
        self._fails_at, self._code = number, code
        self._fails_until = 1 << 30 if and_all_after else number
        try:
            yield
        finally:
            self._fails_at = 0

    @contextmanager
    def kill(self, number: int = 1 << 30, *, within: str = "") -> Iterator[None]:
        """End the process at the Nth call, or within the step of a stand-in."""
        self.off()
        self._dies_at, self._dies_in = number, within
        try:
            yield
        finally:
            self._dies_at, self.dead = 0, False

    def step(self, what: str) -> None:
        """Announce a call of a stand-in."""
        if self._dies_at or self.dead:
            self._count(what, lambda: None, may_fail=False)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(first: Any, *rest: Any, **named: Any) -> Any:
            if (self._fails_at or self._dies_at or self.dead) and self._is_ours(first, named.get("dir_fd")):
                torn = (
                    (lambda: call(first, rest[0][: len(rest[0]) // 2])) if name == "write" else (lambda: None)
                )
                needless = name == "mkdir" and os.path.lexists(first)
                self._count(name, torn, may_fail=name not in _ONLY_KILLED and not needless)
            return call(first, *rest, **named)

        return watched

    def _is_ours(self, first: Any, dir_fd: int | None) -> bool:
        if isinstance(first, int):
            return os.readlink(f"/proc/self/fd/{first}").startswith(self._folder)
        path = os.fsdecode(first)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        return path.startswith(self._folder)

    def _count(self, what: str, torn: Callable[[], object], *, may_fail: bool) -> None:
        if self.dead:
            raise Killed(what)
        if self._dies_at:
            self.seen += 1
            if self.seen == self._dies_at or what == self._dies_in:
                torn()
                self.dead, self.what = True, what
                raise Killed(what)
        elif may_fail:
            self.seen += 1
            if self._fails_at <= self.seen <= self._fails_until:
                self.what = what
                raise OSError(self._code, os.strerror(self._code))
