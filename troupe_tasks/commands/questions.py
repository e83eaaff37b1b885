"""What `create` asks: how keys will be kept, how the sandbox keeps the agent in, the kit's settings, its keys."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupe_tasks.commands.output import Progress
    from troupe_tasks.keystore.choose import Choice
    from troupe_tasks.kits.model import Kit
    from troupe_tasks.kits.services import Service
    from troupe_tasks.kits.settings import Setting
    from troupe_tasks.operations.house import House
    from troupe_tasks.secret import Secret

_TRIES = 3
_LINE_CAP = 8192
_KEPT = {
    "host-key": "encrypted with this machine's host key, which lies on the same disk: a copy of the disk can read them",
    "file": "in plain files that only this user can read: a copy of the disk can read them",
}
_ISOLATION = (
    "Its sandbox will be a capsule: gVisor's own kernel where that works, else Linux namespaces. That is weaker than\n"
    "a virtual machine: a fault in gVisor or in this machine's kernel could let a compromised agent out."
)


def accept_tier(choice: Choice) -> None:
    """Ask before keys get less than a TPM; no flag answers it. Raises NotConfirmed."""
    from troupe_tasks.commands.output import confirmed, note
    from troupe_tasks.errors import NotConfirmed

    if choice.tier == "tpm":
        return
    note(f"Its keys will be kept {_KEPT[choice.tier]}.\n({choice.why})")
    if not confirmed("Keep them so, for as long as this agent lives?"):
        raise NotConfirmed(
            "nothing was done", cause=f"keys in the tier {choice.tier} need your yes, on a terminal",
            hint="Run it again on a terminal and answer yes, or on a machine with a TPM and systemd 256 or newer.",
        )  # fmt: skip


def accept_isolation(house: House) -> None:
    """Ask before an agent with keys gets less than a virtual machine; the setting `driver` is a standing yes."""
    from troupe_tasks import config
    from troupe_tasks.commands.output import confirmed, note
    from troupe_tasks.errors import NotConfirmed
    from troupe_tasks.sandbox.protocol import Isolation

    if config.read(house.paths).get("driver") == house.chosen or house.driver().isolation() is Isolation.KVM:
        return
    note(_ISOLATION)
    if not confirmed("Create it all the same?"):
        raise NotConfirmed(
            "nothing was done", cause="a capsule for an agent with keys needs your yes",
            hint="`troupe config set driver capsule` says yes once and for all.",
        )  # fmt: skip


def settings(kit: Kit, given: Mapping[str, str]) -> dict[str, str]:
    """Return the kit's settings: as given by flag, as typed, or by default."""
    from troupe_tasks.commands.output import somebody_is_there
    from troupe_tasks.kits.settings import applicable, settle

    answers = dict(given)
    if somebody_is_there():
        known: dict[str, str] = {}
        for setting in kit.settings:
            if not applicable(setting, known):
                continue
            if setting.name not in answers and (typed := _typed(setting, setting.default_among(known))):
                answers[setting.name] = typed
            known[setting.name] = answers.get(setting.name) or setting.default_among(known) or ""
    return settle(kit.settings, answers)


def _typed(setting: Setting, default: str | None) -> str:
    from troupe_tasks.commands.output import ask, note
    from troupe_tasks.errors import UsageError
    from troupe_tasks.kits.settings import value

    note(f"\n{setting.ask}")
    for left in reversed(range(_TRIES)):
        text = ask(f"{setting.name}{f' [{default}]' if default else ''}:").strip()
        if not text and default:
            return ""
        try:
            return value(setting, text)
        except UsageError as error:
            if not left:
                raise
            note(f"{error.what}: {error.cause}")
    raise AssertionError("every try returns or raises")


def keys(
    kit: Kit, chosen: Mapping[str, str], *, kept: Collection[str]
) -> tuple[tuple[str, ...], dict[str, Secret]]:
    """Return the services that the agent gets, and the keys that were given now; kept are those it has already."""
    services: list[str] = []
    given: dict[str, Secret] = {}
    for service in kit.services:
        if not service.applies(chosen):
            continue
        if service.name not in kept:
            key = a_key(service, skippable=not service.required)
            if key is None:
                continue
            given[service.name] = key
        services.append(service.name)
    return tuple(services), given


def a_key(service: Service, *, skippable: bool) -> Secret | None:
    """Ask for a key, hidden, or read a line of stdin where there is no terminal; None when it was skipped."""
    from troupe_tasks.commands.output import note, somebody_is_there
    from troupe_tasks.errors import UsageError
    from troupe_tasks.secret import Secret, no_core_dumps

    no_core_dumps()  # from here on to its end this process has held a key
    if somebody_is_there():
        from getpass import getpass

        note(f"\n{service.line}")
        text = getpass(f"{service.name} key (hidden{'; Enter skips it' if skippable else ''}): ", sys.stderr)
    else:
        text = sys.stdin.readline(_LINE_CAP).rstrip("\r\n")
    if not text.strip():
        if skippable:
            return None
        raise UsageError(f"the agent needs a key for {service.name}", cause=service.line)
    return Secret.typed(text)


@dataclass
class Logins:
    """Asks for a registry's token, once however often it is opened: the next line of stdin is a key."""

    progress: Progress
    given: dict[str, Secret] = field(default_factory=dict, repr=False)

    def __call__(self, place: str) -> Secret:
        """Return the token of a registry."""
        if place not in self.given:
            self.progress.close()
            self.given[place] = _token(place)
        return self.given[place]

    def hand_over(self, driver: str) -> None:
        """Give what was typed, and was taken, to the driver's runtime; that it can't be is said, and stops nothing."""
        from troupe_tasks.commands.output import note
        from troupe_tasks.errors import TroupeError
        from troupe_tasks.operations import kit

        try:
            kit.hand_over(driver, self.given)
        except TroupeError as error:
            note(f"the registry's token stays with troupe: {error}")


def _token(place: str) -> Secret:
    """Ask for a token, hidden, or read a line of stdin where there is no terminal."""
    from troupe_tasks.commands.output import somebody_is_there
    from troupe_tasks.errors import UsageError
    from troupe_tasks.secret import Secret, no_core_dumps

    no_core_dumps()
    if somebody_is_there():
        from getpass import getpass

        text = getpass(f"{place} wants a token, as USER:TOKEN or alone (hidden): ", sys.stderr)
    else:
        text = sys.stdin.readline(_LINE_CAP).rstrip("\r\n")
    if not text.strip():
        raise UsageError(
            f"{place} lets nobody in without a token", cause="the kit is private there, or is not there",
            hint="Run it on a terminal, or give the token on stdin.",
        )  # fmt: skip
    return Secret.typed(text)
