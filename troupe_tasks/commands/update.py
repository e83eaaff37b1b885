"""`troupe update`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.commands.frame import command


@command(
    example="troupe update",
    flags={"without_units": "Leave the unit of Docker's sandbox daemon as it is."},
)
def update(context: Context, without_units: bool = False, json: bool = False, debug: bool = False) -> None:
    """Bring an installed troupe up to its newest release, by that release's own installer."""
    from troupe_tasks.commands.output import note, show_json
    from troupe_tasks.operations.update import update as bring
    from troupe_tasks.paths import Paths

    done = bring(Paths.from_env(), without_units=without_units)
    if json:
        show_json(done)
    elif not done.updated:
        print(f"nothing to do: this is {done.installed}, and the newest release is {done.newest}")
    else:
        print(f"updated from {done.installed} to {done.newest}")
        note("Gateways that run go on as they are; `troupe restart --all` starts them with the new one.")
