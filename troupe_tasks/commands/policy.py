"""`troupe policy ID [MODE]`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands.frame import command


@command(
    example="troupe policy mr-doyle locked",
    flags={"agent": "The agent's ID.", "mode": "balanced, locked or open; without it the policy is shown."},
    positional=("agent",),
    rest=Rest("mode", " "),
)
def policy(context: Context, agent: str, mode: str = "", json: bool = False, debug: bool = False) -> None:
    """Show or change what an agent may reach; open connections that a new policy forbids are ended at once."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.create import checked_policy
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations import wiring
    from troupe_tasks.text import escape

    house, agent_id = chosen(agent)
    if mode:
        wiring.change_policy(house, agent_id, checked_policy(mode))
    found = wiring.reachable(house, agent_id)
    if json:
        show_json(found)
        return
    print(f"{agent_id}: {found.mode}, {found.meaning}")
    for rule in found.rules:
        print(f"  {escape(rule)}")
