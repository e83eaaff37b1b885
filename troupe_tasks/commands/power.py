"""`troupe start`, `stop` and `restart`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.house import House

Told = Callable[[str], None]
_AGENTS = {"agents": "The agents' IDs, with commas between them.", "all": "Every agent of this machine."}
_FORCE = {"force": "Start it even if the machine's budget does not hold it."}
_IDS = Rest("agents", ",")


@command(example="troupe start mr-doyle jane", flags={**_AGENTS, **_FORCE}, rest=_IDS)
def start(
    context: Context, agents: str = "", all: bool = False, force: bool = False, json: bool = False, debug: bool = False
) -> None:  # fmt: skip
    """Start agents: the sandbox and the gateway. After a machine restart, `start --all` brings everything back."""

    def does(house: House, one: str, told: Told) -> bool:
        _start(house, one, told, over_budget=_accepted(house, one, force=force))
        return False

    _each(agents, everyone=all, does=does, done="runs", as_json=json)


@command(example="troupe stop mr-doyle", flags=_AGENTS, rest=_IDS)
def stop(
    context: Context, agents: str = "", all: bool = False, json: bool = False, debug: bool = False
) -> None:
    """Stop agents; current work is given time to finish."""

    def does(house: House, one: str, told: Told) -> bool:
        return _stop(house, one, told, for_good=True)

    _each(agents, everyone=all, does=does, done="is stopped", as_json=json)


@command(example="troupe restart --all", flags={**_AGENTS, **_FORCE}, rest=_IDS)
def restart(
    context: Context, agents: str = "", all: bool = False, force: bool = False, json: bool = False, debug: bool = False
) -> None:  # fmt: skip
    """Stop agents and start them again."""

    def both(house: House, one: str, told: Told) -> bool:
        over = _accepted(house, one, force=force)  # before it is stopped: a no leaves it as it is
        cut = _stop(house, one, told, for_good=False)
        _start(house, one, told, over_budget=over)
        return cut

    _each(agents, everyone=all, does=both, done="runs", as_json=json)


def _accepted(house: House, one: str, *, force: bool) -> bool:
    from troupe_tasks.commands import budget
    from troupe_tasks.operations import power

    return budget.accepted_for(
        house, one, lambda: power.verdict(house, one), force=force, question=f"Start {one} all the same?"
    )


def _start(house: House, one: str, told: Told, *, over_budget: bool) -> None:
    from troupe_tasks.operations import power

    power.start(house, one, over_budget=over_budget, told=told)


def _stop(house: House, one: str, told: Told, *, for_good: bool) -> bool:
    from troupe_tasks.commands.output import note
    from troupe_tasks.operations import power

    cut = power.stop(house, one, told=told, for_good=for_good)
    if cut:
        note(f"{one}: its work did not end in time and was cut")
    return cut


def _each(
    agents: str, *, everyone: bool, does: Callable[[House, str, Told], bool], done: str, as_json: bool
) -> None:  # fmt: skip
    """Do one thing, which tells whether work was cut, to every agent; a failure keeps no other from its turn."""
    from troupe_tasks.commands.frame import Asked, filled
    from troupe_tasks.commands.output import note, progress, show_json
    from troupe_tasks.errors import TroupeError

    house, chosen = _chosen(agents, everyone=everyone)
    failed: dict[str, TroupeError] = {}
    answer: list[dict[str, object]] = []
    for one in chosen:
        try:
            with progress(quiet=as_json) as shown:
                cut = does(house, one, shown.step)
            answer.append({"agent": one, "done": True, "cut": cut})
            if not as_json:
                print(f"{one} {done}")
        except TroupeError as error:
            answer.append({"agent": one, "done": False, "why": str(error)})
            if len(chosen) > 1 and not as_json:
                note(f"{one}: {error}\n  next: {filled(error.hint, Asked(agents=(one,)))}")
            failed[one] = error
    if as_json:
        show_json(answer)
    if failed:
        last = [*failed.values()][-1]
        if len(chosen) == 1:
            raise last
        what = f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}"
        raise type(last)(what, hint="Why is told above, of each.") from last


def _chosen(agents: str, *, everyone: bool) -> tuple[House, list[str]]:
    from troupe_tasks import record as records
    from troupe_tasks.errors import UsageError
    from troupe_tasks.names import checked_id
    from troupe_tasks.operations import power
    from troupe_tasks.operations.house import House
    from troupe_tasks.paths import Paths

    house = House(Paths.from_env())
    if everyone == bool(agents):
        raise UsageError("name the agents, or pass --all", hint="For example: `troupe COMMAND mr-doyle`.")
    if everyone:
        # One whose record does not read fails in its turn, and keeps no other from its own.
        return house, sorted(one.id for found in records.load_all(house.paths) for one in found)
    chosen = [checked_id(word) for word in agents.split(",")]
    for one in chosen:
        power.known(house, one)
    return house, chosen
