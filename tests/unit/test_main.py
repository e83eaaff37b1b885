"""The program as it is called: what it can't make sense of is told in the form that was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from troupe_tasks.namespace import namespace

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


@pytest.mark.parametrize("words", ["--frob", "--frob list", "--version --frob", "--list --frob"])
def test_a_flag_before_the_command_that_is_none_is_told_in_the_usual_form(words: str) -> None:
    done = troupe(*words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("troupe: ")
    assert "\n  next: " in done.stderr


@pytest.mark.parametrize("words", ["--json --help", "--help --json", "--help", "--version --json", "list -h"])
def test_help_and_version_are_shown_whatever_comes_with_them(words: str) -> None:
    done = troupe(*words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "troupe" in done.stdout.lower()


@pytest.mark.parametrize("words", ["list -h", "--help", "--version", "secret --help", "config"])
def test_a_reader_of_a_help_that_goes_away_is_no_error(words: str) -> None:
    shell = f"{sys.executable} -m troupe_tasks {words} | true"
    done = subprocess.run(
        ["bash", "-c", f"{shell}; echo ${{PIPESTATUS[0]}}"], cwd=ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout in ("141\n", "0\n")  # it may have been quicker than its reader
    assert done.stderr == ""


@pytest.mark.parametrize("group", ["config", "backup"])
def test_the_help_of_a_group_that_is_a_command_names_its_other_commands(group: str) -> None:
    shown = troupe(group, "--help").stdout
    usual = namespace.collections[group].default
    for name in namespace.collections[group].tasks:
        assert (f"  {group} {name} " in shown) == (name != usual), name


def test_a_word_behind_dashes_is_no_flag() -> None:
    done = troupe("status", "--nonsense", "--", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith("troupe: ")


def test_a_setting_is_shown_as_it_was_set() -> None:
    assert json.loads(troupe("config", "set", "reserve", "10", "--json").stdout) == {"reserve": "10"}
    assert json.loads(troupe("config", "unset", "reserve", "--json").stdout) == {"reserve": None}
