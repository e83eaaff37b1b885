"""A clean clone, the real packages: killed while it prepares itself, started twice at once, moved."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_CLONED = shutil.ignore_patterns(".*", "__pycache__", "tests", "docs")
DEADLINE_S = 170.0

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(400)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copytree(ROOT, tmp_path / "clone", ignore=NOT_CLONED)
    return tmp_path / "clone"


def start(clone: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [clone / "troupe", "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip


def kill_when_it_says(clone: Path, words: str, *, after_s: float) -> None:
    running = start(clone)
    assert running.stderr is not None
    deadline = time.monotonic() + DEADLINE_S
    while words not in (said := running.stderr.readline()):
        assert said, f"it ended without saying {words!r}"
        assert time.monotonic() < deadline
    # Somewhere inside the step, not at its edge: this is the moment to hit, not something to wait for.
    time.sleep(after_s)
    running.kill()
    running.communicate(timeout=DEADLINE_S)
    assert not (clone / ".venv" / "troupe.lock").exists()


@pytest.mark.chaos
def test_it_survives_being_killed_started_twice_at_once_and_moved(clone: Path, tmp_path: Path) -> None:
    kill_when_it_says(clone, "step 1 of 2", after_s=0.5)
    kill_when_it_says(clone, "step 2 of 2", after_s=1.0)
    pair = [start(clone), start(clone)]
    said = [one.communicate(timeout=DEADLINE_S) for one in pair]
    assert [one.returncode for one in pair] == [0, 0], said
    assert sum("step 2 of 2" in stderr for _, stderr in said) == 1
    moved = clone.rename(tmp_path / "moved")
    again = subprocess.run(
        [moved / "troupe", "--version"], capture_output=True, encoding="utf-8", timeout=DEADLINE_S, check=True
    )
    assert again.stderr == ""
    assert again.stdout == said[0][0]
