"""`troupe reset`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.commands.frame import command


@command(
    example="troupe reset mr-doyle --check",
    flags={
        "agent": "The agent's ID.",
        "check": "Only prove that it could be done, and show the steps; nothing is changed, nothing is asked.",
        "yes": "Answer the question: yes, everything it has learned and made goes.",
        "force": "Do it even if the machine's budget does not hold it.",
    },
    positional=("agent",),
)
def reset(
    context: Context, agent: str, check: bool = False, yes: bool = False, force: bool = False, json: bool = False,
    debug: bool = False,
) -> None:  # fmt: skip
    """Give an agent a fresh start: its keys, its kit version and its settings stay, all else goes."""
    from troupe_tasks import record as records
    from troupe_tasks.commands import budget, output
    from troupe_tasks.commands.agent import chosen, telling_afterwards
    from troupe_tasks.errors import NotConfirmed
    from troupe_tasks.operations import reset as resetting
    from troupe_tasks.operations import room
    from troupe_tasks.text import escape

    house, agent_id = chosen(agent, hint=False)
    if check:
        steps = resetting.check(house, agent_id)
        if json:
            output.show_json({"agent": agent_id, "steps": steps})
            return
        print(f"{agent_id} can be reset. It would go so:")
        for number, step in enumerate(steps, start=1):
            print(f"{number:3}. {step}")
        return
    sizes = records.load(house.paths, agent_id).sizes  # nobody is asked about an agent that is not there
    if not yes and not output.confirmed(f"Everything that {agent_id} has learned and made goes. Reset it?"):
        raise NotConfirmed(
            "nothing was done", cause="a reset needs your yes", hint="Answer yes, or pass --yes."
        )
    over = budget.accepted_for(
        house, agent_id, lambda: room.verdict(house, agent_id, sizes), force=force, question="Reset it all the same?"
    )  # fmt: skip
    with telling_afterwards(house, agent_id), output.progress(quiet=json) as progress:
        result = resetting.reset(house, agent_id, over_budget=over, told=progress.step)
    if json:
        output.show_json(result)
    else:
        print(f"{agent_id} starts anew. It says:\n\n{escape(result.reply)}")
