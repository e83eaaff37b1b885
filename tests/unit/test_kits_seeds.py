"""A kit's seeds: what can be one, and how an agent's files are brought in line with them."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from troupe_tasks.kits import seeds

PROGRAM = Path(__file__).parents[2] / "guest" / "seeds.py"


def kit(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / "seeds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def test_seeds_are_read_with_the_modes_they_get(tmp_path: Path) -> None:
    folder = kit(tmp_path, {"skills/a/SKILL.md": b"text", "scripts/run": b"#!/bin/sh\n"})
    assert [(seed.path, seed.mode) for seed in seeds.read(folder)] == [
        ("scripts/run", 0o700), ("skills/a/SKILL.md", 0o600),
    ]  # fmt: skip


def test_a_kit_without_seeds_has_none(tmp_path: Path) -> None:
    assert seeds.read(tmp_path) == ()


@pytest.mark.parametrize(
    "name", [".env", "config.yaml", "SOUL.md", "skills", "skills/a b", "skills/.hidden", "cron/jobs.json"]
)
def test_what_can_be_no_seed_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="seeds are"):
        seeds.read(kit(tmp_path, {name: b""}))


def test_a_link_is_no_seed(tmp_path: Path) -> None:
    folder = kit(tmp_path, {"skills/a": b""})
    (folder / "seeds/skills/b").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="plain files"):
        seeds.read(folder)


def test_too_many_or_too_large_seeds_are_told(tmp_path: Path) -> None:
    many = kit(tmp_path / "many", {f"skills/{number}": b"" for number in range(201)})
    large = kit(tmp_path / "large", {"skills/a": bytes(3 << 20), "skills/b": bytes(2 << 20)})
    for folder in (many, large):
        with pytest.raises(ValueError, match="at most"):
            seeds.read(folder)


def inside(work: str, home: Path, asked: dict[str, Any]) -> str:
    words = [sys.executable, "-I", "-S", str(PROGRAM), work, str(home)]
    done = subprocess.run(
        words, input=json.dumps(asked).encode(), stdout=subprocess.PIPE, check=True, timeout=20
    )
    return done.stdout.decode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_state_of_each_place_is_told(tmp_path: Path) -> None:
    for name, data in (
        ("new", b"new"),
        ("old", b"old"),
        ("edited", b"mine"),
        ("large", bytes((4 << 20) + 1)),
    ):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "folder").mkdir()
    names = ("new", "old", "edited", "large", "link", "folder", "gone", "old/below")
    asked = {name: [digest(b"old"), digest(b"new")] for name in names}
    assert json.loads(inside("look", tmp_path, asked)) == {
        "new": "new", "old": "old", "edited": "edited", "large": "large", "link": "odd", "folder": "odd",
        "gone": "absent", "old/below": "absent",
    }  # fmt: skip


def test_files_are_written_removed_and_what_is_odd_is_kept_aside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    home = tmp_path / "home"
    (home / "skills").mkdir(parents=True)
    (home / "skills/link").symlink_to(outside)
    (home / "skills/file").write_bytes(b"stands where a folder is needed")
    (home / "skills/gone").write_bytes(b"old")
    large = bytes((4 << 20) + 1)
    (home / "skills/large").write_bytes(large)
    one = {"data": base64.b64encode(b"#!new").decode(), "mode": 0o700}
    wanted = {"skills/link": one, "skills/file/SKILL.md": one, "skills/gone": None, "skills/large": one}
    for _ in range(2):
        inside("apply", home, wanted)
    assert (home / "skills/link").read_bytes() == b"#!new"
    assert (home / "skills/link").stat().st_mode & 0o777 == 0o700
    assert (home / "skills/link.before").is_symlink()
    assert (home / "skills/large.before").read_bytes() == large
    assert (home / "skills/large").read_bytes() == b"#!new"
    assert (home / "skills/file.before").read_bytes() == b"stands where a folder is needed"
    assert (home / "skills/file/SKILL.md").read_bytes() == b"#!new"
    assert not (home / "skills/gone").exists()
    assert list(outside.iterdir()) == []
