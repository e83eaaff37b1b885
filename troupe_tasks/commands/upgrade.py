"""`troupe upgrade`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.kit import Found
    from troupe_tasks.operations.upgrade import Upgraded
    from troupe_tasks.secret import Secret


@command(
    example="troupe upgrade mr-doyle",
    flags={
        "agent": "The agent's ID.",
        "force": "Do it even if the machine's budget does not hold it.",
    },
    positional=("agent",),
)
def upgrade(
    context: Context, agent: str, force: bool = False, json: bool = False, debug: bool = False
) -> None:
    """Move an agent, with everything it has, onto the newest version of its kit of the same MAJOR."""
    from troupe_tasks import record as records
    from troupe_tasks.commands import budget, output, questions
    from troupe_tasks.commands.agent import chosen, telling_afterwards
    from troupe_tasks.operations import room
    from troupe_tasks.operations import upgrade as upgrading

    house, agent_id = chosen(agent, hint=False)
    with output.progress(quiet=json) as progress:
        logins = questions.Logins(progress)
        found = upgrading.newest(house, agent_id, login=logins, told=progress.step)
        record = records.load(house.paths, agent_id)
        logins.hand_over(record.driver)
    if found is None:
        _show_newest(agent_id, record.kit.type, record.kit.version, as_json=json)
        return
    over = budget.accepted_for(
        house, agent_id, lambda: room.verdict(house, agent_id, record.sizes),
        force=force, question="Upgrade it all the same?",
    )  # fmt: skip
    keys = _keys(house, agent_id, found)
    with telling_afterwards(house, agent_id), output.progress(quiet=json) as progress:
        done = upgrading.upgrade(house, agent_id, found, keys, over_budget=over, told=progress.step)
    _show(done, as_json=json)


def _keys(house: House, agent_id: str, found: Found) -> dict[str, Secret]:
    from troupe_tasks.commands import questions
    from troupe_tasks.operations.upgrade import missing

    asked = {one.name: questions.a_key(one, skippable=False) for one in missing(house, agent_id, found.kit)}
    return {name: key for name, key in asked.items() if key is not None}


def _show_newest(agent_id: str, kind: str, version: str, *, as_json: bool) -> None:
    from troupe_tasks.commands.output import show_json

    if as_json:
        show_json({"agent": agent_id, "kit": kind, "version": version, "upgraded": False})
    else:
        print(f"{agent_id} has {kind} {version}, which is the newest: it is left as it is.")


def _show(done: Upgraded, *, as_json: bool) -> None:
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.text import escape

    if as_json:
        show_json({**done.model_dump(mode="json"), "upgraded": True})
        return
    record = done.agent
    print(
        f"{record.id} has {record.kit.type} {record.kit.version} now. It says:\n\n{escape(done.self_test.reply)}"
    )
    if done.edits:
        print(
            f"\nIts own edits of these files gave way to the new version; they are in {done.edits_kept_in}:"
        )
        for path in done.edits:
            print(f"  {path}")
