"""`troupe version`."""

from __future__ import annotations

from invoke import Context

from troupe_tasks.commands.frame import command


@command(example="troupe version --json", flags={})
def version(context: Context, json: bool = False, debug: bool = False) -> None:
    """Show troupe's version and commit, Python's, and the drivers'."""
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.host.versions import versions
    from troupe_tasks.sandbox import drivers

    found = {**versions(), "sbx": drivers.sbx_version()}
    if json:
        show_json(found)
        return
    for what, value in found.items():
        print(f"{what:10} {value}")
