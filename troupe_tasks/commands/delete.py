"""`troupe delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.paths import Paths


@command(
    example='troupe delete mr-doyle --yes-i-mean "Mr. Doyle"',
    flags={"agent": "The agent's ID.", "yes_i_mean": "The agent's name as shown; without it you are asked."},
    positional=("agent",),
)
def delete(
    context: Context, agent: str, yes_i_mean: str = "", json: bool = False, debug: bool = False
) -> None:
    """Delete an agent: its sandbox, keys, receipts, backups, logs and environment."""
    from troupe_tasks.commands import output
    from troupe_tasks.commands.agent import chosen, say_unfinished
    from troupe_tasks.errors import NotFound
    from troupe_tasks.operations.delete import delete as perform
    from troupe_tasks.operations.delete import known

    house, agent_id = chosen(agent, hint=False)
    if not known(house.paths, agent_id):
        raise NotFound(f"there is no agent {agent_id}")
    say_unfinished(house, agent_id, own="delete")
    name, what = _name(house.paths, agent_id)
    if name is not None:
        _confirm(name, yes_i_mean, what=what)
    with output.progress(quiet=json) as progress:
        services = perform(house, agent_id, told=progress.step)
    if json:
        output.show_json({"agent": agent_id, "deleted": True, "revoke": list(services)})
        return
    print(f"{agent_id} is deleted; its name is free again.")
    for service in services:
        print(f"Revoke its key for {service} at the provider.")


def _name(paths: Paths, agent_id: str) -> tuple[str | None, str]:
    """Return what is to be typed, and what that is; None when a delete got so far that the record is gone."""
    from troupe_tasks import record as records
    from troupe_tasks.commands.output import note
    from troupe_tasks.errors import StateUnreadable

    try:
        record = records.find(paths, agent_id)
    except StateUnreadable as error:
        note(f"{error}\n  So its name is not known, and its ID stands for it.")
        return agent_id, "ID"
    return record.name if record else None, "name"


def _confirm(name: str, given: str, *, what: str) -> None:
    from troupe_tasks.commands.output import ask, somebody_is_there
    from troupe_tasks.errors import NotConfirmed
    from troupe_tasks.text import escape

    if not given and somebody_is_there():
        given = ask(f"This deletes everything of the agent. Type its {what}, {escape(name)}:")
    if given != name:
        raise NotConfirmed(
            "nothing was deleted", cause=f"the {what} that was given is not the agent's",
            hint=f'Type it as shown, or pass --yes-i-mean "{name}".',
        )  # fmt: skip
