from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks import strict
from troupe_tasks.errors import StateUnreadable


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: int = Field(ge=1)


class Whole(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    parts: tuple[Part, ...]


def test_what_was_written_is_read_back() -> None:
    whole = Whole(parts=(Part(size=1),))
    assert strict.parse(Whole, whole.model_dump_json().encode(), place=Path("/x")) == whole


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b'{"parts": [{"size": 1}, {"size": 0}]}', r"parts\.1\.size: Input should be greater than"),
        (b'{"parts": [{"size": "1"}]}', r"parts\.0\.size: Input should be a valid integer"),
        (b'{"parts": [], "\\u001b[2J": 1}', r"\\x1b\[2J: Extra inputs"),
        (b"{", r"^Invalid JSON"),
        (b"\xff\xfe", r"^Invalid JSON"),
    ],
)
def test_the_first_complaint_is_told_with_its_place_and_never_raw(data: bytes, cause: str) -> None:
    with pytest.raises(StateUnreadable, match=r"/a/file is not what troupe writes") as caught:
        strict.parse(Whole, data, place=Path("/a/file"), hint="Remove it.")
    assert caught.value.hint == "Remove it."
    assert re.search(cause, caught.value.cause)
