"""`troupe list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.inventory import Agent

_HEAD = ("ID", "NAME", "STATE", "KIT", "CPUS", "MEMORY", "DISK", "DRIVER", "KEYS", "UP")


@command(example="troupe list --json", flags={}, name="list")
def listing(context: Context, json: bool = False, debug: bool = False) -> None:
    """List every agent, and the sandboxes that are not troupe's."""
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.inventory import agents
    from troupe_tasks.paths import Paths
    from troupe_tasks.text import escape, table

    found = agents(House(Paths.from_env()))
    if json:
        show_json([agent.model_dump(mode="json") for agent in found])
        return
    if not found:
        print('No agents yet. Create one: troupe create hermes --name "Mr. Doyle" --rehearsal')
        return
    print(table(_HEAD, [_row(agent) for agent in found]))
    for agent in found:
        if agent.why:
            print(f"{escape(agent.id or agent.name)}: {escape(agent.why)}")
        if agent.unfinished:
            finish = escape(agent.unfinished.finish)
            print(f"{agent.id}: unfinished {agent.unfinished.operation}; finish it with: {finish}")


def _row(agent: Agent) -> tuple[str, ...]:
    from troupe_tasks.sizes import show_mib
    from troupe_tasks.text import line

    cpus, memory, disk = "?", "?", "?"
    if agent.sizes:
        cpus, memory, disk = (
            str(agent.sizes.cpus),
            show_mib(agent.sizes.memory_mib),
            show_mib(agent.sizes.storage_mib),
        )
    kit = f"{agent.kit} {agent.version}".strip() or "-"
    driver = f"{agent.driver or '?'} ({agent.isolation or '?'})"
    name, keys, up = line(agent.name, 40) or "?", agent.key_tier or "-", duration(agent.up_seconds)
    return (agent.id or "-", name, agent.state, kit, cpus, memory, disk, driver, keys, up)


def duration(seconds: int | None) -> str:
    """Return a time span in its two largest units."""
    if seconds is None:
        return "-"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d {hours % 24}h"
    if hours:
        return f"{hours}h {minutes % 60}m"
    return f"{minutes}m {seconds % 60}s"
