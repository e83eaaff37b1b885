"""`troupe status ID`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.inventory import Full


@command(example="troupe status mr-doyle", flags={"agent": "The agent's ID."}, positional=("agent",))
def status(context: Context, agent: str, json: bool = False, debug: bool = False) -> None:
    """Show one agent in full: record, gateway, budget, limits, egress, unfinished operation, last self-test."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations.inventory import full
    from troupe_tasks.text import escape

    house, agent_id = chosen(agent)
    found = full(house, agent_id)
    if json:
        show_json(found)
        return
    for heading, lines in _parts(found):
        print(heading)
        for line in lines:
            print(f"  {escape(line)}")


def _parts(found: Full) -> list[tuple[str, list[str]]]:
    from troupe_tasks.sizes import show, show_mib

    agent, record = found.agent, found.record
    used = show_mib(found.disk_used_mib) if found.disk_used_mib is not None else "unknown"
    test = found.self_test
    given, kit = record.sizes, record.kit
    sizes = f"{show(**given.model_dump())} ({used} used)"
    return [
        (record.id, [
            f"name       {record.name}",
            f"state      {agent.state}{f': {agent.why}' if agent.why else ''}",
            f"kit        {kit.type} {kit.version}{' (rehearsal)' if record.rehearsal else ''}",
            *([f"pinned     {kit.digest}"] if kit.digest else []),
            f"created    {record.created_at}",
            f"driver     {record.driver}, isolated by {record.isolation}",
            f"keys       {record.key_tier}",
            f"sizes      {sizes}",
        ]),
        ("gateway", [found.gateway]),
        ("budget", list(found.budget)),
        ("limits", [f"{one.resource}: {'binds' if one.binds else 'does NOT bind'}, {one.how}" for one in found.limits]),
        (f"network policy {record.policy}", list(found.egress) or ["no hosts"]),
        ("backups", [f"{found.backups} here; last proved by a restore: {found.last_proved_restore or 'never'}"]),
        ("last self-test", [f"{test.at}: {'passed' if test.passed else f'failed: {test.cause}'}" if test else "none"]),
    ]  # fmt: skip
