"""What `sbx` answers, as far as it is used: Docker documents no shape, so what is needed is strict, the rest ignored.

Shapes as captured from releases 0.35 to 0.45; docs/drivers.md says what each is trusted for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from troupe_tasks.errors import DaemonFailed
from troupe_tasks.sandbox.sbx import restart
from troupe_tasks.strict import complaint
from troupe_tasks.text import line

Name = Annotated[str, Field(min_length=1, max_length=200)]
_MOST = 10_000


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Listed(_Answer):
    """One sandbox of `ls --json`; it tells no size."""

    name: Name
    id: Name
    status: Name


class Sandboxes(_Answer):
    """`ls --json`: the key is there when there are none, too."""

    sandboxes: list[Listed] = Field(max_length=_MOST)


class _Client(_Answer):
    version: Name


class _Server(_Answer):
    state: str = ""
    version: str | None = None


class Version(_Answer):
    """`version --json`: the program's own, and its daemon's when one runs."""

    client: _Client
    server: _Server = _Server()


class Status(_Answer):
    """`daemon status --json`."""

    status: Name


class Template(_Answer):
    """One image of `template ls --json`."""

    repository: Name
    tag: Name


class Templates(_Answer):
    """`template ls --json`."""

    images: list[Template] = Field(max_length=_MOST)


Answer = TypeVar("Answer", bound=BaseModel)


def decode(model: type[Answer], said: bytes, *, command: str) -> Answer:
    """Return the first JSON that a command printed; lines before it tell of the daemon's start (sbx issue 201).

    No JSON is a failure, never an empty answer. Raises DaemonFailed.
    """
    found = _json(said)
    if found is None:
        raise DaemonFailed(
            f"`{command}` gave no answer that reads", cause=line(said, 200) or "it said nothing", hint=restart.MENDS
        )  # fmt: skip
    try:
        return model.model_validate_json(found)
    except ValidationError as error:
        raise DaemonFailed(
            f"`{command}` gave an answer of another form", cause=complaint(error), hint=restart.MENDS
        ) from None


def _json(said: bytes) -> bytes | None:
    """Return all from the first line on that begins a JSON: a log's line may open a bracket too."""
    lines = said.splitlines(keepends=True)
    for at, text in enumerate(lines):
        if text.lstrip()[:1] not in (b"{", b"["):
            continue
        rest = b"".join(lines[at:])
        with suppress(ValueError):
            from_json(rest)
            return rest
    return None
