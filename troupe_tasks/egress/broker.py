"""The broker process, one per machine: `python -m troupe_tasks.egress.broker`.

It listens on one socket an agent (who speaks there is that agent), and on a control socket of its own, where
a line of JSON asks for `ping`, `reload`, or of one agent to `forget` its keys or for their `outcome`. It keeps no
state but what the policy files say.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from pydantic import ValidationError

from troupe_tasks import __version__, durable, locks
from troupe_tasks.egress import policy as policies
from troupe_tasks.egress.agent import Agent
from troupe_tasks.egress.control import Question
from troupe_tasks.egress.desk import Machine
from troupe_tasks.egress.keys import Keys, Reader, from_keystore
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.outside import Outside
from troupe_tasks.egress.standins import Table
from troupe_tasks.errors import TroupeError
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths
from troupe_tasks.secret import no_core_dumps

_log = logging.getLogger(__name__)
_ASK_CAP_BYTES = 4096
_ASK_DEADLINE_S = 5.0
_LOOKUP_THREADS = 32


class Broker:
    """Every agent's way out of this machine."""

    def __init__(
        self,
        paths: Paths,
        *,
        outside: Outside | None = None,
        limits: Limits | None = None,
        reader: Reader | None = None,
    ) -> None:
        self._paths = paths
        self._machine = Machine(
            paths,
            outside=outside or Outside(ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="lookup")),
            keys=Keys(reader or from_keystore(paths)),
            limits=limits or Limits(),
        )
        self._agents: dict[str, Agent] = {}
        self._reloading = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until stop is set; the caller holds the lock that makes this the only broker."""
        durable.make_private_dir(self._paths.run)
        await self.reload()
        listening = sockets.listen(self._paths.run / "broker.sock")
        control = await sockets.serve(listening, self._answer, limit_bytes=_ASK_CAP_BYTES)
        try:
            await stop.wait()
        finally:
            control.close()
            for agent in self._agents.values():
                await agent.detach()
            self._agents.clear()
            (self._paths.run / "broker.sock").unlink(missing_ok=True)
            self._machine.close()

    async def reload(self) -> dict[str, object]:
        """Bring the agents in line with the policy files; one that can't be read keeps its agent shut out."""
        async with self._reloading:
            unreadable: dict[str, str] = {}
            wanted: dict[str, policies.EgressPolicy] = {}
            for agent_id in self._recorded():
                try:
                    wanted[agent_id] = policies.load(self._paths, agent_id)
                except FileNotFoundError:
                    continue
                except TroupeError as error:
                    unreadable[agent_id] = str(error)
            attached = [agent_id for agent_id in wanted if agent_id not in self._agents]
            detached = [agent_id for agent_id in self._agents if agent_id not in wanted]
            for agent_id in detached:
                await self._agents.pop(agent_id).detach()
            # Before any policy is taken up: what is one agent's stand-in is another's mistake from then on.
            self._machine.stand_ins = Table(wanted.values())
            for agent_id, policy in wanted.items():
                try:
                    await self._take_up(policy)
                except TroupeError as error:
                    unreadable[agent_id] = str(error)
            for agent_id, why in unreadable.items():
                _log.error("%s is shut out: %s", agent_id, why)
            return {"attached": attached, "detached": detached, "unreadable": unreadable}

    def _recorded(self) -> list[str]:
        folder = self._paths.egress("any").parent
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()) if folder.is_dir() else []

    async def _take_up(self, policy: policies.EgressPolicy) -> None:
        known = self._agents.get(policy.id)
        if known is not None:
            await known.adopt(policy)
            return
        agent = Agent(self._paths, policy, machine=self._machine)
        await agent.attach()
        self._agents[policy.id] = agent

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_ASK_DEADLINE_S):
                question = await reader.readline()
            writer.write(json.dumps(await self._reply(question)).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _reply(self, line: bytes) -> dict[str, object]:
        try:
            question = Question.model_validate_json(line)
        except ValidationError:
            return {"error": "ask for ping, reload, or of an agent to forget or for its outcome"}
        match question.ask:
            case "ping":
                agents = {agent_id: agent.connections for agent_id, agent in self._agents.items()}
                return {"version": __version__, "pid": os.getpid(), "agents": agents}
            case "reload":
                return await self.reload()
            case "forget":
                self._machine.forget(question.agent)
                return {"forgotten": question.agent}
            case "outcome":
                found = self._machine.outcomes.of(question.agent)
                return {"services": {service: outcome.model_dump() for service, outcome in found.items()}}


def allow_many_files() -> None:
    """Raise this process's soft limit on open files to its hard one: a connection takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(paths: Paths) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Broker(paths).run(stop)


def main() -> int:
    """Run the broker until a signal ends it; a second one is refused."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    os.umask(0o077)
    no_core_dumps()
    allow_many_files()
    paths = Paths.from_env()
    try:
        with locks.named(paths, "broker", wait_s=0):
            asyncio.run(_serve(paths))
    except TroupeError as error:
        _log.error("the broker can't run: %s. %s", error, error.hint)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
