"""Paths: XDG folders as their specification says."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks.paths import Paths


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Give a folder with nothing in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def test_xdg_variables_name_the_roots() -> None:
    env = {"HOME": "/h", "XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}
    credentials = Path("/h/.local/state/credentials")
    assert Paths.from_env(env) == Paths(Path("/d/troupe"), Path("/c/troupe"), Path("/s/troupe"), credentials)


@pytest.mark.parametrize("value", ["", "relative", "./x", "~/x"])
def test_relative_and_empty_values_are_ignored(value: str) -> None:
    env = {"HOME": "/h", "XDG_DATA_HOME": value, "XDG_CONFIG_HOME": value, "XDG_STATE_HOME": value}
    found = Paths.from_env(env)
    assert found.data == Path("/h/.local/share/troupe")
    assert found.config == Path("/h/.config/troupe")
    assert found.state == Path("/h/.local/state/troupe")


def test_a_home_that_is_not_absolute_is_not_used() -> None:
    assert Paths.from_env({"HOME": "here"}).data.is_absolute()


def test_places_of_an_agent_are_its_own() -> None:
    paths = Paths.from_env({"HOME": "/h"})
    for place in (
        paths.agent,
        paths.record,
        paths.sandbox,
        paths.egress,
        paths.receipts,
        paths.logs,
        paths.keys,
    ):
        assert place("a") != place("b")
    assert paths.record("a") == Path("/h/.local/share/troupe/agents/a/source.json")
    assert paths.config_file == Path("/h/.config/troupe/config.toml")


def test_asking_makes_nothing(here: Path) -> None:
    paths = Paths.from_env({"HOME": str(here)})
    assert paths.run.is_relative_to(here)
    assert list(here.iterdir()) == []
