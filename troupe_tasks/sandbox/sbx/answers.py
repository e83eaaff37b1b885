"""What `sbx` answers, as far as it is used: Docker documents no shape, so what is needed is strict, the rest ignored.

Shapes as captured from releases 0.35 to 0.45; docs/drivers.md says what each is trusted for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from json import JSONDecoder
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from troupe_tasks.errors import DaemonFailed
from troupe_tasks.sandbox.sbx import restart
from troupe_tasks.strict import complaint
from troupe_tasks.text import line

Name = Annotated[str, Field(min_length=1, max_length=200)]
_MOST = 10_000
_LINES = 1000  # looked at, of what is before an answer
_TRIED = 10
_DECODER = JSONDecoder()


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Listed(_Answer):
    """One sandbox of `ls --json`; it tells no size."""

    name: Name
    id: Name
    status: Name
    workspaces: JsonValue = None


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
    """Return the first JSON of the right form that a command printed.

    Lines before it tell of the daemon's start (sbx issue 201), and there may be others after it. No JSON is a failure,
    never an empty answer. Raises DaemonFailed.
    """
    wrong: ValidationError | None = None
    for found in islice(_jsons(said), _TRIED):
        try:
            return model.model_validate_json(found)
        except ValidationError as error:
            wrong = error
    if wrong is None:
        raise DaemonFailed(
            f"`{command}` gave no answer that reads", cause=line(said, 200) or "it said nothing", hint=restart.MENDS
        )  # fmt: skip
    raise DaemonFailed(
        f"`{command}` gave an answer of another form", cause=complaint(wrong),
        hint="This sbx answers otherwise than troupe knows: please report that with `sbx version`.",
    ) from None  # fmt: skip


def _jsons(said: bytes) -> Iterator[bytes]:
    """Yield each whole JSON that begins a line: a log's line may open a bracket too."""
    text, at = said.decode("utf-8", errors="surrogateescape"), 0
    for _ in range(_LINES):
        if text[at : at + 1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                _, end = _DECODER.raw_decode(text, at)
                yield text[at:end].encode("utf-8", errors="surrogateescape")
                at = end
        at = text.find("\n", at) + 1
        if not at:
            return
