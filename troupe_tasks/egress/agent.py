"""One agent at the broker: the socket that is its identity, its policy, and its live connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import h11

from troupe_tasks.egress.audit import AuditLog, Entry
from troupe_tasks.egress.conversation import Conversation
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.outside import Outside
from troupe_tasks.egress.policy import SOCKET_NAME, EgressPolicy, decide
from troupe_tasks.egress.verdict import Refusal
from troupe_tasks.egress.wire import Wire
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

_log = logging.getLogger(__name__)
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 37\r\n"
    b"Connection: close\r\n\r\ntroupe: too many connections at once\n"
)


class Agent:
    """Serve one agent's connections; whoever speaks on its socket is that agent."""

    def __init__(self, paths: Paths, policy: EgressPolicy, *, outside: Outside, limits: Limits) -> None:
        self.policy = policy
        self._outside, self._limits = outside, limits
        self._audit = AuditLog(paths.logs(policy.id))
        self._lookups = asyncio.Semaphore(limits.lookups)
        self._rehearsal = paths.run / "rehearsal.sock"
        self._live: dict[asyncio.Task[None], Conversation] = {}
        self._path = paths.egress(policy.id) / "socket" / SOCKET_NAME
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return len(self._live)

    async def attach(self) -> None:
        """Start to listen. Any user may connect: the folder around decides who sees the socket."""
        listening = sockets.listen(self._path, mode=0o666)
        self._server = await sockets.serve(listening, self._accept, limit_bytes=self._limits.chunk_bytes)

    async def detach(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        await self._end(list(self._live))
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._audit.close()

    async def adopt(self, policy: EgressPolicy) -> None:
        """Take up a changed policy, and end the connections that it no longer lets through."""
        self.policy = policy
        await self._end([task for task, talk in self._live.items() if not self._still_granted(talk)])

    def _still_granted(self, talk: Conversation) -> bool:
        if talk.going is None:
            return True
        place, by_tunnel = talk.going
        try:
            decide(self.policy, place, tunnel=by_tunnel)
        except Refusal:
            return False
        return True

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._live) >= self._limits.connections:
            self._audit.write(Entry(status=503, verdict="busy", why="too many connections at once"), ms=0)
            writer.write(_BUSY)
            writer.close()
            return
        talk = Conversation(
            client=Wire(reader, writer, role=h11.SERVER, limits=self._limits),
            policy=lambda: self.policy,
            audit=self._audit,
            outside=self._outside,
            lookups=self._lookups,
            rehearsal=self._rehearsal,
            limits=self._limits,
        )
        task = asyncio.get_running_loop().create_task(talk.run())
        self._live[task] = talk
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._live.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours costs this connection only; what the agent sent is not repeated here.
            _log.error("%s: a connection ended in %s", self.policy.id, type(error).__name__)
