"""What every command on one agent starts with: its ID, checked, and a word on unfinished business."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupe_tasks.errors import Interrupted
    from troupe_tasks.journal import Open
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
    from troupe_tasks.commands.frame import Asked, filled
    from troupe_tasks.commands.output import note
    from troupe_tasks.errors import StateUnreadable, Tampered
    from troupe_tasks.operations.inventory import pending

    try:
        found = pending(house, agent_id)
    except (Tampered, StateUnreadable) as error:
        note(f"{error}\n  next: {filled(error.hint, Asked(agents=(agent_id,)))}")
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


def interrupted(agents: Sequence[str], *, everyone: bool = False) -> Interrupted:
    """Tell what an interrupt left half done: by the receipts, for no runtime is waited for on the way out."""
    from troupe_tasks.errors import Interrupted, TroupeError
    from troupe_tasks.journal import Journal
    from troupe_tasks.paths import Paths

    paths = Paths.from_env()
    if everyone:
        agents = sorted(folder.name for folder in paths.agents.iterdir()) if paths.agents.is_dir() else ()
    found: dict[str, Open] = {}
    for agent_id in agents:
        try:
            opened = Journal(paths, agent_id).unfinished()
        except TroupeError as error:
            return Interrupted("interrupted", cause=str(error), hint=error.hint)
        if opened is not None and not opened.only_looked:
            found[agent_id] = opened
    if not found:
        return Interrupted("interrupted")
    finish = ", ".join(f"`{opened.finish}`" for opened in found.values())
    first, opened = next(iter(found.items()))
    may = len(found) == 1 and opened.operation != "delete"
    give_up = f" Or give the agent up: `troupe delete {first}`." if may else ""
    return Interrupted(
        "interrupted", cause="; ".join(_unfinished(one, opened) for one, opened in found.items()),
        hint=f"Finish {'it' if len(found) == 1 else 'them'}: {finish}.{give_up}",
    )  # fmt: skip


def _unfinished(agent_id: str, opened: Open) -> str:
    # What stops an agent for a while does so between these two steps.
    text = f"{agent_id} has an unfinished {opened.operation}"
    if "plan" not in opened.done or "go-on" in opened.done:
        return text
    return f"{text}, and {'is' if 'quiesce' in opened.done else 'may be'} stopped until it is finished"
