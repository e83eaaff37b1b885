"""`troupe secret set|check|list|remove`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from troupe_tasks.commands.frame import command

if TYPE_CHECKING:
    from troupe_tasks.operations.secrets import Changed

_NOT_WELL = 4
_AGENT = {"agent": "The agent's ID."}
_BOTH = {**_AGENT, "service": "The service's name; `troupe secret list ID` shows them."}


@command(
    example="troupe secret set mr-doyle github < token.txt", flags=_BOTH, positional=("agent", "service"), name="set"
)  # fmt: skip
def put(context: Context, agent: str, service: str, json: bool = False, debug: bool = False) -> None:
    """Give an agent a key, new or changed: asked hidden, or read from stdin where there is no terminal."""
    from troupe_tasks.commands import output, questions
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.operations import secrets

    house, agent_id = chosen(agent, hint=False)
    _, _, declared = secrets.declared(house, agent_id, service)
    asked = not secrets.key_is_kept(house, agent_id, service)
    key = questions.a_key(declared, skippable=False) if asked else None
    with output.progress(quiet=json) as progress:
        changed = secrets.put(house, agent_id, service, key, told=progress.step)
    if json:
        output.show_json({"agent": agent_id, "service": service, **changed.model_dump()})
        return
    how = "its gateway was restarted for it" if changed.restarted else "its next request uses it"
    print(f"{agent_id} has its key for {service}{f'; {how}' if changed.put_in else ''}.")
    _say_owed(agent_id, changed)


@command(example="troupe secret check mr-doyle", flags=_AGENT, positional=("agent",))
def check(context: Context, agent: str, json: bool = False, debug: bool = False) -> None:
    """Prove every key of an agent kept, readable and wired, without reading one, and tell what its provider said."""
    import sys

    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations import secret_check
    from troupe_tasks.text import escape

    house, agent_id = chosen(agent)
    found = secret_check.check(house, agent_id)
    if json:
        show_json([proof.model_dump(mode="json") for proof in found])
    elif not found:
        print(f"{agent_id} has no keys.")
    else:
        for proof in found:
            print(f"{proof.service:16} {proof.what:9} {'ok' if proof.ok else 'NO':3} {escape(proof.detail)}")
    if not all(proof.ok for proof in found):
        sys.exit(_NOT_WELL)


@command(example="troupe secret list mr-doyle", flags=_AGENT, positional=("agent",), name="list")
def show(context: Context, agent: str, json: bool = False, debug: bool = False) -> None:
    """List the services an agent has or can have: which have a key, where each key goes, where to get one."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations import secret_check
    from troupe_tasks.text import table

    house, agent_id = chosen(agent)
    found = secret_check.services(house, agent_id)
    if json:
        show_json([one.model_dump(mode="json") for one in found])
    elif not found:
        print(f"{agent_id} has no services.")
    else:
        rows = [
            (one.service, "kept" if one.kept else "-", "required" if one.required else "optional",
             ", ".join(one.hosts), one.place) for one in found
        ]  # fmt: skip
        print(table(("SERVICE", "KEY", "", "HOSTS", "PLACE"), rows))
        for one in found:
            print(f"{one.service}: {one.line}")


@command(
    example="troupe secret remove mr-doyle github", flags=_BOTH, positional=("agent", "service")
)  # fmt: skip
def remove(context: Context, agent: str, service: str, json: bool = False, debug: bool = False) -> None:
    """Take a key away from an agent; revoke it at its provider as well."""
    from troupe_tasks.commands import output
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.operations import secrets

    house, agent_id = chosen(agent, hint=False)
    _, _, declared = secrets.declared(house, agent_id, service)
    with output.progress(quiet=json) as progress:
        changed = secrets.remove(house, agent_id, service, told=progress.step)
    if json:
        output.show_json({"agent": agent_id, "service": service, **changed.model_dump()})
        return
    _say_owed(agent_id, changed)
    print(f"The key for {service} is gone from this machine. Revoke it at its provider as well.")
    if declared.required:
        print(f"{agent_id} can't do without it: `troupe secret set {agent_id} {service}` gives it another.")


def _say_owed(agent_id: str, changed: Changed) -> None:
    from troupe_tasks.commands.output import note

    if not changed.put_in:
        note(
            f"Its sandbox is lost, or not whole, so the stand-ins in it stay as they are. `troupe restore {agent_id}` "
            f"or `troupe reset {agent_id}` gives it another, with the right ones; if this one comes back, run it again."
        )
