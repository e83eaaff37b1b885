"""Hold agents' keys for as short as it pays: read when a request needs one, wiped a minute later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from troupe_tasks.egress.verdict import Refusal
from troupe_tasks.errors import TroupeError
from troupe_tasks.paths import Paths

_log = logging.getLogger(__name__)
Reader = Callable[[str, str], bytes]  # (agent ID, service) -> key; blocks

KEPT_S = 60.0
# So that an agent that asks again and again does not have a failing TPM asked each time.
_FAILURE_KEPT_S = 5.0
_THREADS = 8
_KEY_CAP_BYTES = 4096


def from_keystore(paths: Paths) -> Reader:
    """Return the reader of the agent's own key tier."""

    def read(agent_id: str, service: str) -> bytes:
        from troupe_tasks.keystore.store import Keystore

        with Keystore(paths, agent_id).read(service) as secret:
            return secret.reveal()

    return read


@dataclass(eq=False)
class _Kept:
    """A key, or the news that it could not be read; wiped with its agent or after its time."""

    key: bytearray | None
    timer: asyncio.TimerHandle
    until: float


@dataclass(eq=False)
class _Shelf:
    """What is held for one agent."""

    kept: dict[str, _Kept] = field(default_factory=dict)
    reading: dict[str, asyncio.Future[bytearray | None]] = field(default_factory=dict)


class Keys:
    """Read keys through their tier, each in one thread at a time however many requests wait for it."""

    def __init__(self, reader: Reader, *, deadline_s: float = 35.0, kept_s: float = KEPT_S) -> None:
        self._reader, self._deadline_s, self._kept_s = reader, deadline_s, kept_s
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="keys")
        self._shelves: dict[str, _Shelf] = {}

    async def read(self, agent_id: str, service: str) -> bytes:
        """Return an agent's key for a service, or raise a Refusal that never shows it."""
        shelf = self._shelves.setdefault(agent_id, _Shelf())
        kept = shelf.kept.get(service)
        if kept is not None and time.monotonic() < kept.until:
            return _told(kept.key, agent_id, service)
        work = shelf.reading.get(service)
        if work is None:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._pool, self._read, agent_id, service)
            shelf.reading[service] = work
            work.add_done_callback(lambda done: self._keep(shelf, service, done))
        try:
            async with asyncio.timeout(self._deadline_s):
                key = await asyncio.shield(work)
        except TimeoutError:
            raise unreadable(agent_id, service) from None
        if key is not None and not any(key):  # forgotten, and so wiped, between being read and getting here
            return await self.read(agent_id, service)
        return _told(key, agent_id, service)

    def forget(self, agent_id: str) -> None:
        """Wipe an agent's keys; a reading under way is not kept, and no later request gets what it finds."""
        if shelf := self._shelves.pop(agent_id, None):
            for service in list(shelf.kept):
                _drop(shelf, service)

    def close(self) -> None:
        """Wipe every key."""
        for agent_id in list(self._shelves):
            self.forget(agent_id)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, agent_id: str, service: str) -> bytearray | None:
        try:
            key = self._reader(agent_id, service)
        except (TroupeError, OSError, ValueError) as error:
            # The class alone: what a tool printed is told by `troupe secret check`.
            _log.error("%s: the key for %s can't be read: %s", agent_id, service, type(error).__name__)
            return None
        return bytearray(key) if 0 < len(key) <= _KEY_CAP_BYTES else None

    def _keep(self, shelf: _Shelf, service: str, done: asyncio.Future[bytearray | None]) -> None:
        shelf.reading.pop(service, None)
        if done.cancelled() or done.exception() is not None:
            return
        key = done.result()
        if not any(shelf is one for one in self._shelves.values()):
            # Forgotten meanwhile: whoever asked before that gets it, nobody after.
            asyncio.get_running_loop().call_later(1, _wipe, key)
            return
        kept_s = self._kept_s if key is not None else _FAILURE_KEPT_S
        _drop(shelf, service)
        timer = asyncio.get_running_loop().call_later(kept_s, _drop, shelf, service)
        shelf.kept[service] = _Kept(key, timer, time.monotonic() + kept_s)


def _drop(shelf: _Shelf, service: str) -> None:
    if kept := shelf.kept.pop(service, None):
        kept.timer.cancel()
        _wipe(kept.key)


def _wipe(key: bytearray | None) -> None:
    if key is not None:
        key[:] = bytes(len(key))


def _told(key: bytearray | None, agent_id: str, service: str) -> bytes:
    if key is None:
        raise unreadable(agent_id, service)
    return bytes(key)


def unreadable(agent_id: str, service: str) -> Refusal:
    """Return what an agent is told whose key can't be read, or can't be a key."""
    return Refusal(502, "key", f"the key for {service} can't be read; `troupe secret check {agent_id}`")
