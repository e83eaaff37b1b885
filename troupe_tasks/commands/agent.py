"""What every command on one agent starts with: its ID, checked, and a word on unfinished business."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupe_tasks.operations.house import House


def chosen(text: str, *, hint: bool = True) -> tuple[House, str]:
    """Return the house and the ID that text names; say first what is unfinished on that agent."""
    from troupe_tasks.names import checked_id
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths

    house, agent_id = House(Paths.from_env()), checked_id(text)
    if hint:
        say_unfinished(house, agent_id)
    return house, agent_id


def say_unfinished(house: House, agent_id: str, *, own: str = "") -> None:
    """Say what is unfinished on an agent, but for the operation that this command finishes itself.

    Damaged receipts are told, and keep nobody from looking: what changes an agent reads them again, and refuses.
    """
    from troupe_tasks.commands.output import note
    from troupe_tasks.errors import StateUnreadable, Tampered
    from troupe_tasks.operations.inventory import pending

    try:
        found = pending(house, agent_id)
    except (Tampered, StateUnreadable) as error:
        note(f"{error}\n  next: {error.hint}")
        return
    if found is not None and found.operation != own:
        note(f"{agent_id} has an unfinished {found.operation}; finish it with: {found.finish}")


@contextmanager
def telling_afterwards(house: House, agent_id: str) -> Iterator[None]:
    """Tell what the operation within cut, left, or could not archive, whether it goes well or takes the agent back."""
    from troupe_tasks.errors import BackupFailed, MoveFailed

    try:
        yield
    except (BackupFailed, MoveFailed):
        _say(house, agent_id)
        raise
    _say(house, agent_id)


def _say(house: House, agent_id: str) -> None:
    from troupe_tasks.commands.output import note
    from troupe_tasks.operations.inventory import afterwards

    for text in afterwards(house, agent_id):
        note(f"{agent_id}: {text}")
