"""What a release session wrote into an installed troupe, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from troupe_tasks import stamp
from troupe_tasks.errors import StateUnreadable

GOOD = {"version": "0.1.0", "commit": "0123456789ab", "address": "https://troupe.example:8443/releases"}


def written(tmp_path: Path, **changed: object) -> Path:
    (tmp_path / "release.json").write_text(json.dumps({**GOOD, **changed}))
    return tmp_path / "release.json"


def test_a_checkout_has_none() -> None:
    assert stamp.read() is None


def test_it_is_read_back(tmp_path: Path) -> None:
    assert stamp.read(written(tmp_path)) == stamp.Stamp(**GOOD)
    found = stamp.read(written(tmp_path, address=""))
    assert found is not None
    assert found.address == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"address": "http://troupe.example/releases"},
        {"address": "https://troupe.example/releases/"},
        {"address": "https://troupe.example/$(id)"},
        {"address": "https://troupe.example/a\n"},
        {"version": "../0.1.0"},
        {"commit": "HEAD"},
        {"more": 1},
    ],
)
def test_anything_else_is_told_as_damage(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(StateUnreadable, match=r"release\.json is not what troupe writes"):
        stamp.read(written(tmp_path, **changed))
