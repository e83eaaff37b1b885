"""`troupe receipts ID`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.commands.frame import command


@command(example="troupe receipts mr-doyle", flags={"agent": "The agent's ID."}, positional=("agent",))
def receipts(context: Context, agent: str, json: bool = False, debug: bool = False) -> None:
    """Show an agent's operations and their steps; an altered receipt is told and refused."""
    from troupe_tasks.commands.agent import chosen, say_unfinished
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.errors import NotFound
    from troupe_tasks.journal import Journal
    from troupe_tasks.text import table

    house, agent_id = chosen(agent, hint=False)
    found = Journal(house.paths, agent_id).receipts
    if not found:
        raise NotFound(f"there are no receipts of {agent_id}")
    say_unfinished(house, agent_id)
    if json:
        show_json([receipt.model_dump(mode="json") for receipt in found])
        return
    rows = [(str(r.number), r.at, r.operation, r.step) for r in found]
    print(table(("receipt", "at", "operation", "step"), rows))
