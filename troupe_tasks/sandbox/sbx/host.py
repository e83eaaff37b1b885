"""What sbx has to be told once on a machine before it makes sandboxes of ours; what a person set is kept."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from troupe_tasks.errors import DaemonFailed, NotReady
from troupe_tasks.sandbox.sbx import calls, trouble
from troupe_tasks.secret import Secret
from troupe_tasks.text import line

_SOURCES = "kit.allowedSources"
_Entries = TypeAdapter(list[str])
_STORE_S = 60.0  # it may ask the registry, and a keyring


class _Setting(BaseModel):
    """`settings get --json`: Docker does not say whether a list is JSON, or text that holds JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    value: list[str] | str = Field(max_length=65536)


class _Held(BaseModel):
    """One entry of `secret ls --json`; what it holds is masked there."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    scope: str = Field(max_length=300)
    type: str = Field(max_length=300)
    name: str = Field(max_length=300)


class _Store(BaseModel):
    """`secret ls --json`."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    secrets: list[_Held] = Field(max_length=10_000)


def ensure_policy() -> None:
    """Set the machine's network policy to balanced when there is none; whichever there is stays."""
    done = calls.call(["policy", "ls", "--json"])
    said = done.stderr + b"\n" + done.stdout
    if done.status == 0:
        return
    if b"policy has not been initialized" not in b" ".join(said.lower().split()):
        raise trouble.told(said, doing="`sbx policy ls`")
    calls.do(["policy", "init", "balanced"])


def admit(registry: str) -> None:
    """Let sbx accept the kits of one registry, by HOST/PATH/: the slash admits no neighbours, and every entry stays.

    The setting is read again afterwards: the variable DOCKER_SANDBOXES_KIT_ALLOWED_SOURCES would hide it.
    """
    prefix = f"{registry.rstrip('/')}/"
    before = _sources()
    if prefix in before or "*" in before:
        return
    calls.do(["settings", "set", _SOURCES, json.dumps([*before, prefix])], deadline_s=60)
    after = _sources()
    if not {*before, prefix} <= set(after):
        raise NotReady(
            f"sbx does not keep {prefix} among the places that it accepts kits from",
            cause="a variable or an organization's setting stands above yours",
            hint=f"`sbx settings get {_SOURCES}` shows what holds.",
        )  # fmt: skip


def hand_over(registry: str, user: str, token: Secret) -> None:
    """Give sbx what opens a registry (HOST[:PORT]), for the host's own pulls: without a scope no sandbox gets it.

    It is looked for afterwards: sbx ends well too when it has not taken it. Raises DaemonFailed then.
    """
    words = ["secret", "set", "--registry", registry, "--username", user, "--password-stdin", "-f"]
    calls.do(words, stdin=token, deadline_s=_STORE_S)
    held = calls.ask(_Store, ["secret", "ls", "--json"], deadline_s=_STORE_S).secrets
    if not any((one.scope, one.type, one.name) == ("host-only", "registry", registry) for one in held):
        raise DaemonFailed(
            f"sbx did not keep the token of {registry} for the host's own pulls",
            hint="`sbx secret ls` shows what it has.",
        )


def _sources() -> list[str]:
    found = calls.ask(_Setting, ["settings", "get", _SOURCES, "--json"], deadline_s=60).value
    if isinstance(found, list):
        return found
    try:
        return _Entries.validate_json(found)
    except ValidationError:
        raise NotReady(
            f"sbx tells {_SOURCES} in a form that troupe does not know", cause=line(found, 100),
            hint=f"Add the registry by hand: `sbx settings set {_SOURCES} '[…]'`, keeping what is there.",
        ) from None  # fmt: skip
