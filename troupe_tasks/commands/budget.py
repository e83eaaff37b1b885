"""What a command does when the machine's budget does not hold what it is about to make: show by how much, and ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from troupe_tasks.budget import Verdict
    from troupe_tasks.operations.house import House


def accepted(verdict: Verdict, *, force: bool, question: str) -> bool:
    """Return whether it may go over the budget, which only --force and a person's yes allow. Raises OverBudget."""
    from troupe_tasks.commands.output import confirmed, note, somebody_is_there

    verdict.raise_refusals()
    if force or not verdict.over:
        return force
    if somebody_is_there():  # the error tells everybody else
        for line in verdict.lines:
            note(line.show())
    if not confirmed(f"This machine's budget does not hold it. {question}"):
        verdict.raise_over()
    return True


def accepted_for(
    house: House, agent_id: str, verdict: Callable[[], Verdict], *, force: bool, question: str
) -> bool:  # fmt: skip
    """Return the same for an operation on an agent; one that has begun is not asked about again.

    Nobody may be there to answer the command that finishes it, and the room that it takes was settled.
    """
    from troupe_tasks.operations.inventory import pending

    if pending(house, agent_id) is not None:
        return force
    return accepted(verdict(), force=force, question=question)
