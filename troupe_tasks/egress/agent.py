"""One agent at the broker: the socket that is its identity, its policy, and its live connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from troupe_tasks.egress.audit import AuditLog, Entry
from troupe_tasks.egress.conversation import Conversation
from troupe_tasks.egress.desk import Desk, Machine
from troupe_tasks.egress.pipe import Plain
from troupe_tasks.egress.policy import SOCKET_NAME, EgressPolicy
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

_log = logging.getLogger(__name__)
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 37\r\n"
    b"Connection: close\r\n\r\ntroupe: too many connections at once\n"
)


class Agent:
    """Serve one agent's connections; whoever speaks on its socket is that agent."""

    def __init__(self, paths: Paths, policy: EgressPolicy, *, machine: Machine) -> None:
        self.policy = policy
        self._limits = machine.limits
        self._paths = paths
        self._audit = AuditLog(paths.logs(policy.id))
        self._desk = Desk(
            machine=machine,
            policy=lambda: self.policy,
            audit=self._audit,
            lookups=asyncio.Semaphore(machine.limits.lookups),
            upstreams=asyncio.Semaphore(machine.limits.upstreams),
        )
        self._live: dict[asyncio.Task[None], Conversation] = {}
        self._path = paths.egress(policy.id) / "socket" / SOCKET_NAME
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return len(self._live)

    async def attach(self) -> None:
        """Start to listen. Any user may connect: the folder around decides who sees the socket."""
        self._publish()
        listening = sockets.listen(self._path, mode=0o666)
        self._server = await sockets.serve(listening, self._accept, limit_bytes=self._limits.chunk_bytes)

    async def detach(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        await self._end(list(self._live))
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._desk.machine.forget(self.policy.id)
        self._audit.close()

    async def adopt(self, policy: EgressPolicy) -> None:
        """Take up a changed policy, and end the connections that it no longer lets through."""
        is_changed, self.policy = policy.services != self.policy.services, policy
        if is_changed:
            self._desk.machine.forget(policy.id)
        self._publish()
        await self._end([task for task, talk in self._live.items() if not talk.is_granted(policy)])

    def _publish(self) -> None:
        """Have the sandbox see the authority by which the broker ends its TLS, if it does."""
        if self.policy.services:
            from troupe_tasks.egress import authority

            authority.publish(self._paths, self.policy.id, self._desk.machine.authority.pem)

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
        talk = Conversation(Plain(reader, writer, limits=self._limits), desk=self._desk)
        task = asyncio.get_running_loop().create_task(talk.run())
        self._live[task] = talk
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._live.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of ours costs this connection only; what the agent sent is not repeated here.
            _log.error("%s: a connection ended in %s", self.policy.id, type(error).__name__)
