"""`troupe start`, `stop` and `restart`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.house import House

_AGENTS = {"agents": "The agents' IDs, with commas between them.", "all": "Every agent of this machine."}
_FORCE = {"force": "Start it even if the machine's budget does not hold it."}
_IDS = Rest("agents", ",")


@command(example="troupe start mr-doyle jane", flags={**_AGENTS, **_FORCE}, rest=_IDS)
def start(
    context: Context, agents: str = "", all: bool = False, force: bool = False, debug: bool = False
) -> None:
    """Start agents: the sandbox and the gateway. After a machine restart, `start --all` brings everything back."""

    def does(house: House, one: str, told: Callable[[str], None]) -> None:
        _start(house, one, told, over_budget=_accepted(house, one, force=force))

    _each(agents, everyone=all, does=does, done="runs")


@command(example="troupe stop mr-doyle", flags=_AGENTS, rest=_IDS)
def stop(context: Context, agents: str = "", all: bool = False, debug: bool = False) -> None:
    """Stop agents; current work is given time to finish."""
    _each(agents, everyone=all, does=_stop, done="is stopped")


@command(example="troupe restart --all", flags={**_AGENTS, **_FORCE}, rest=_IDS)
def restart(
    context: Context, agents: str = "", all: bool = False, force: bool = False, debug: bool = False
) -> None:
    """Stop agents and start them again."""

    def both(house: House, one: str, told: Callable[[str], None]) -> None:
        over = _accepted(house, one, force=force)  # before it is stopped: a no leaves it as it is
        _stop(house, one, told)
        _start(house, one, told, over_budget=over)

    _each(agents, everyone=all, does=both, done="runs")


def _accepted(house: House, one: str, *, force: bool) -> bool:
    from troupe_tasks.commands import budget
    from troupe_tasks.operations import power

    return budget.accepted_for(
        house, one, lambda: power.verdict(house, one), force=force, question=f"Start {one} all the same?"
    )


def _start(house: House, one: str, told: Callable[[str], None], *, over_budget: bool) -> None:
    from troupe_tasks.operations import power

    power.start(house, one, over_budget=over_budget, told=told)


def _stop(house: House, one: str, told: Callable[[str], None]) -> None:
    from troupe_tasks.commands.output import note
    from troupe_tasks.operations import power

    if power.stop(house, one, told=told):
        note(f"{one}: its work did not end in time and was cut")


def _each(
    agents: str, *, everyone: bool, does: Callable[[House, str, Callable[[str], None]], None], done: str
) -> None:
    """Do one thing to every chosen agent; a failure does not keep the others from theirs."""
    from troupe_tasks.commands.output import note, progress
    from troupe_tasks.errors import TroupeError

    house, chosen = _chosen(agents, everyone=everyone)
    failed: TroupeError | None = None
    for one in chosen:
        try:
            with progress() as shown:
                does(house, one, shown.step)
            print(f"{one} {done}")
        except TroupeError as error:
            if len(chosen) > 1:
                note(f"{one}: {error}\n  next: {error.hint}")
            failed = error
    if failed is not None:
        raise failed


def _chosen(agents: str, *, everyone: bool) -> tuple[House, list[str]]:
    from troupe_tasks.errors import UsageError
    from troupe_tasks.names import checked_id
    from troupe_tasks.operations import power
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths

    house = House(Paths.from_env())
    if everyone == bool(agents):
        raise UsageError("name the agents, or pass --all", hint="For example: troupe start mr-doyle")
    if everyone:
        return house, [record.id for record in house.records()]
    chosen = [checked_id(word) for word in agents.split(",")]
    for one in chosen:
        power.known(house, one)
    return house, chosen
