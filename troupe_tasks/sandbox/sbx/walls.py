"""Close Docker's network for a new sandbox, and prove what can be proved of its walls before it is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from troupe_tasks.errors import SandboxFailed
from troupe_tasks.sandbox.sbx import answers, calls, trouble
from troupe_tasks.sandbox.sbx.answers import Listed
from troupe_tasks.text import line

# Denied anyway by every preset but `allow-all`; what a rule allows is asked about beside it.
_OUTSIDE = "example.com"
_MOST_ASKED = 8
_HOST = re.compile(r"(?:\*\*?\.)?((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,})(?::[0-9]+)?")


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Inspected(_Answer):
    """`inspect --json`, as far as it tells what is within a sandbox's reach; whatever is in a list is too much.

    Those of the host's folders are left out of an answer that has none; of the others a missing one proves nothing.
    """

    workspace: JsonValue = None
    mounts: JsonValue = None
    runtime_mounts: JsonValue = None
    ports: JsonValue
    mcp_gateway: bool


class _Governance(_Answer):
    active: bool = False


class _Verdict(_Answer):
    """`policy check network --json`."""

    allowed: bool
    governance: _Governance | None = None


class _Rule(_Answer):
    """One entry of `policy ls --json`."""

    decision: str = Field(max_length=100)
    resources: list[str] | str = Field(max_length=10_000)


class _Rules(_Answer):
    rules: list[_Rule] = Field(max_length=10_000)


def prove(one: Listed) -> None:
    """Close Docker's network for a sandbox, and prove that it is closed and that nothing of the host is in reach."""
    name = one.name
    calls.do(["policy", "deny", "network", "--sandbox", name, "**"])
    for host in (_OUTSIDE, *_allowed_somewhere(name)):
        _refuse_open(name, host)
    found = calls.ask(_Inspected, ["inspect", name, "--json"])
    for reach, what in (
        (_here(one.workspaces) or _here([found.workspace]), "a folder of the host"),
        (_others(found.mounts) or _others(found.runtime_mounts), "a part of the host"),
        (found.ports, "a port of the host"),
        (found.mcp_gateway, "its MCP gateway, which leads past the broker"),
    ):
        if reach:
            raise SandboxFailed(
                f"sbx gave {name} {what}", cause="" if reach is True else line(json.dumps(reach), 200),
                hint="`sbx settings list` shows what it gives every sandbox; an organization's settings stand above.",
            )  # fmt: skip


def _allowed_somewhere(name: str) -> Iterator[str]:
    """Yield some of the hosts that a rule allows to others or to all: only these show whether the denial holds."""
    rules = calls.ask(_Rules, ["policy", "ls", name, "--json"]).rules
    yield from islice(dict.fromkeys(_hosts(rules)), _MOST_ASKED)


def _hosts(rules: Iterable[_Rule]) -> Iterator[str]:
    for rule in rules:
        if rule.decision.lower() == "allow":
            for text in [rule.resources] if isinstance(rule.resources, str) else rule.resources:
                if match := _HOST.fullmatch(text.strip().lower()):
                    wildcard = match[0].startswith("*")
                    yield f"troupe-asks.{match[1]}" if wildcard else match[1]


def _refuse_open(name: str, host: str) -> None:
    done = calls.call(["policy", "check", "network", "--sandbox", name, host, "--json"])
    if done.status not in (0, 1) or not done.stdout.strip():  # 1 is its no, and any failure's
        raise trouble.told(done.stderr, doing="`sbx policy check`")
    found = answers.decode(_Verdict, done.stdout, command="sbx policy check")
    if found.governance is not None and found.governance.active:
        raise SandboxFailed(
            f"an organization's policy governs {name}", cause="no rule of this machine's own is heeded then",
            hint="`sbx policy ls` shows what holds. Use another driver: --driver capsule.",
        )  # fmt: skip
    if found.allowed:
        raise SandboxFailed(
            f"Docker's network stays open for {name}", cause=f"its policy lets it reach {host}",
            hint="`sbx policy ls` shows which rule; an organization's may be above yours.",
        )  # fmt: skip


def _here(places: JsonValue) -> JsonValue:
    """Return the places that are the host's, for a folder has the same path inside; others may be the image's own."""
    told = places if isinstance(places, list) else []
    return [
        place for place in told if isinstance(place, str) and place.startswith("/") and Path(place).exists()
    ]


def _others(mounts: JsonValue) -> JsonValue:
    """Return the mounts, but for the one in memory that the mixin asks for: whether it is told here is not known."""
    if not isinstance(mounts, list):
        return mounts
    return [one for one in mounts if not (
        isinstance(one, dict) and one.get("container_target") == "/tmp" and not one.get("host_path")
    )]  # fmt: skip
