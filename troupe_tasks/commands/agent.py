"""What every command on one agent starts with: its ID, checked, and a word on unfinished business."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupe_tasks.operations.house import House


def chosen(text: str, *, hint: bool = True) -> tuple[House, str]:
    """Return the house and the ID that text names; say first what is unfinished on that agent."""
    from troupe_tasks.commands.output import note
    from troupe_tasks.names import checked_id
    from troupe_tasks.operations.house import House
    from troupe_tasks.operations.inventory import pending
    from troupe_tasks.paths import Paths

    house, agent_id = House(Paths.from_env()), checked_id(text)
    unfinished = pending(house, agent_id) if hint else None
    if unfinished is not None:
        note(f"{agent_id} has an unfinished {unfinished.operation}; finish it with: {unfinished.finish}")
    return house, agent_id
