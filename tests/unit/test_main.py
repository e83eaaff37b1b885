"""The program as it is called: what it can't make sense of is told in the form that was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def troupe(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "troupe_tasks", *words], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    ["nonsense --json", "--json nonsense", "status --json", "create x --nonsense --json", "secret --json"],
)  # fmt: skip
def test_words_that_do_not_parse_are_told_in_json(words: str) -> None:
    done = troupe(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"] == "UsageError"


def test_a_word_behind_dashes_is_no_flag() -> None:
    done = troupe("status", "--nonsense", "--", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith("troupe: ")


def test_a_setting_is_shown_as_it_was_set() -> None:
    assert json.loads(troupe("config", "set", "reserve", "10", "--json").stdout) == {"reserve": "10"}
    assert json.loads(troupe("config", "unset", "reserve", "--json").stdout) == {"reserve": None}
