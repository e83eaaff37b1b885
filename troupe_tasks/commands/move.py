"""`troupe resize` and `troupe restore`: an agent moves, with everything it has or had, into a new sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.record import Record, SelfTest

_FORCE = {"force": "Do it even if the machine's budget does not hold it."}


@command(
    example="troupe resize mr-doyle --memory 4 --storage 20",
    flags={
        "agent": "The agent's ID.",
        "cpu": "CPUs: a whole number, or max; without it as many as before.",
        "memory": "Memory in GiB, or max; without it as much as before.",
        "storage": "Disk in GiB, or max; it only grows. Without it as much as before.",
        "docker": "The disk for Docker in GiB, or max; it starts empty at any size. Only sbx makes one.",
        **_FORCE,
    },
    positional=("agent",),
)
def resize(
    context: Context, agent: str, cpu: str = "", memory: str = "", storage: str = "", docker: str = "",
    force: bool = False, json: bool = False, debug: bool = False,
) -> None:  # fmt: skip
    """Move an agent, with everything it has, into a new sandbox of other sizes; with none, into one like its own."""
    import shlex

    from troupe_tasks import record as records
    from troupe_tasks import sizes
    from troupe_tasks.commands import budget, output
    from troupe_tasks.commands.agent import chosen, telling_afterwards
    from troupe_tasks.kits import pins
    from troupe_tasks.operations import move, room

    house, agent_id = chosen(agent, hint=False)
    typed = sizes.typed(cpu=cpu, memory=memory, storage=storage, docker=docker)
    record = records.load(house.paths, agent_id)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    wanted = room.wanted(record.driver, kit, record.sizes, typed)
    over = budget.accepted_for(
        house, agent_id, lambda: room.verdict(house, agent_id, move.settled(house, agent_id, wanted)),
        force=force, question="Resize it all the same?",
    )  # fmt: skip
    given = [
        f"--{flag}={value}"
        for flag, value in (("cpu", cpu), ("memory", memory), ("storage", storage), ("docker", docker))
        if value
    ]
    finish = shlex.join(["troupe", "resize", agent_id, *given])
    with telling_afterwards(house, agent_id), output.progress(quiet=json) as progress:
        record, result = move.resize(
            house, agent_id, wanted, finish=finish, over_budget=over, told=progress.step
        )
    _show(record, result, as_json=json)


@command(
    example="troupe restore mr-doyle 20261129T220411Z-backup",
    flags={
        "agent": "The agent's ID.",
        "backup": "The backup's name; without it the newest that was proved.",
        "yes": "Answer the question: yes, what it has now gives way to the backup.",
        **_FORCE,
    },
    positional=("agent",),
    rest=Rest("backup", " "),
)
def restore(
    context: Context, agent: str, backup: str = "", yes: bool = False, force: bool = False, json: bool = False,
    debug: bool = False,
) -> None:  # fmt: skip
    """Move an agent into a new sandbox with what a backup holds; what it has now is archived first."""
    from troupe_tasks import record as records
    from troupe_tasks.commands import budget, output
    from troupe_tasks.commands.agent import chosen, telling_afterwards
    from troupe_tasks.errors import NotConfirmed
    from troupe_tasks.operations import move, moving, room

    house, agent_id = chosen(agent, hint=False)
    name = move.to_restore(house, agent_id, backup)
    known = records.load(house.paths, agent_id)
    lost = (
        "" if moving.usable(house, known) else " Its sandbox can't be used, so what is in it is not archived."
    )
    if not yes and not output.confirmed(f"What {agent_id} has now gives way to {name}.{lost} Restore it?"):
        raise NotConfirmed(
            "nothing was done", cause="a restore needs your yes", hint="Answer yes, or pass --yes."
        )
    over = budget.accepted_for(
        house, agent_id, lambda: room.verdict(house, agent_id, known.sizes),
        force=force, question="Restore it all the same?",
    )  # fmt: skip
    with telling_afterwards(house, agent_id), output.progress(quiet=json) as progress:
        record, result = move.restored(house, agent_id, name, over_budget=over, told=progress.step)
    _show(record, result, as_json=json)
    if not json:
        print(f"\nIt has what {name} held.")


def _show(record: Record, result: SelfTest, *, as_json: bool) -> None:
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.sizes import show
    from troupe_tasks.text import escape

    if as_json:
        show_json({"agent": record.model_dump(mode="json"), "self_test": result.model_dump(mode="json")})
        return
    given = show(**record.sizes.model_dump())
    print(f"{record.id} lives in a new sandbox: {given}. It says:\n\n{escape(result.reply)}")
