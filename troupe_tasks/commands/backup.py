"""`troupe backup ID`, and `backup list|prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.vault import Backup

_AGENT = {"agent": "The agent's ID."}
_HEAD = ("BACKUP", "SIZE", "FILES", "PROVED")


@command(
    example="troupe backup mr-doyle",
    flags={
        **_AGENT,
        "drill": "Make none: restore the newest into a sandbox of its own, compare, remove it.",
        "force": "Do it even if the machine's budget does not hold the sandbox of the proof.",
    },
    positional=("agent",), name="take",
)  # fmt: skip
def take(
    context: Context, agent: str, drill: bool = False, force: bool = False, json: bool = False, debug: bool = False
) -> None:  # fmt: skip
    """Back an agent up: it pauses for the archive, which is then proved in a sandbox of its own."""
    from troupe_tasks import record as records
    from troupe_tasks.commands import budget, output
    from troupe_tasks.commands.agent import chosen, telling_afterwards
    from troupe_tasks.operations import backup, room

    house, agent_id = chosen(agent, hint=False)
    over = budget.accepted_for(
        house, agent_id, lambda: room.verdict_beside(house, agent_id, records.load(house.paths, agent_id).sizes),
        force=force, question="Prove it all the same?",
    )  # fmt: skip
    does = backup.drill if drill else backup.backup
    with telling_afterwards(house, agent_id), output.progress(quiet=json) as progress:
        found = does(house, agent_id, over_budget=over, told=progress.step)
    if json:
        output.show_json(found)
    else:
        print(f"{found.name} is whole: it was restored into a sandbox of its own and compared, file by file.")


@command(example="troupe backup list mr-doyle", flags=_AGENT, positional=("agent",), name="list")
def listing(context: Context, agent: str, json: bool = False, debug: bool = False) -> None:
    """List an agent's backups: how large, and when each was last restored to prove it."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations import vault
    from troupe_tasks.text import table

    house, agent_id = chosen(agent)
    found = vault.listed(house, agent_id)
    if json:
        show_json([one.model_dump(mode="json") for one in found])
    elif not found:
        print(f"No backups yet. Make one: troupe backup {agent_id}")
    else:
        print(table(_HEAD, [_row(one) for one in found]))


def _row(one: Backup) -> tuple[str, ...]:
    return (one.name, f"{-(-one.bytes >> 20)} MiB", str(one.files), one.proved or "never")


@command(
    example="troupe backup prune mr-doyle --keep 3",
    flags={**_AGENT, "keep": "How many of the newest stay."}, positional=("agent",),
)  # fmt: skip
def prune(context: Context, agent: str, keep: str = "", json: bool = False, debug: bool = False) -> None:
    """Remove an agent's oldest backups."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.errors import UsageError
    from troupe_tasks.operations import vault

    house, agent_id = chosen(agent)
    if not keep.isdecimal() or not keep.isascii() or not 1 <= int(keep[:6]) <= 1000:
        raise UsageError("--keep takes a whole number from 1 to 1000", hint="The newest backup always stays.")
    gone = vault.prune(house, agent_id, keep=int(keep))
    if json:
        show_json({"removed": gone})
    else:
        print("\n".join(f"{name} is gone." for name in gone) or "There is nothing to remove.")
