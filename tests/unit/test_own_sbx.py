"""The session on a machine's own sbx: it says what lacks, looks like the operator's own, and tells what was left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import own_sbx
from tests.contract.standin_sbx import sbx as standin
from tests.own_sbx import Sbx

ROOT = Path(__file__).parents[2]


def rule(sandbox: str) -> dict[str, str]:
    return {"decision": "deny", "sandbox": sandbox, "resources": "**"}


@pytest.fixture
def sbx(tmp_path: Path) -> Sbx:
    """Return a stand-in with a template and a policy, which needs no runtime for what it tells of itself."""
    place = standin.Place(standin.install(tmp_path, Path("/bin/false")))
    place.put("templates", {"docker.io/one:1": "/nowhere"})
    place.put("policy", {"default": "balanced", "rules": [rule("kept")]})
    return Sbx(tmp_path / "bin/sbx")


def place(sbx: Sbx) -> standin.Place:
    return standin.Place(sbx.program.parents[1] / "sbx-state")


def test_a_template_is_taken_away_again_and_what_was_there_stays(sbx: Sbx) -> None:
    with sbx.left_as_it_was():
        place(sbx).put("templates", {"docker.io/one:1": "/nowhere", "troupe.local/image:x": "/nowhere"})
    assert sbx.holds()["images"] == ["docker.io/one:1"]


def test_a_machine_without_a_policy_gets_the_one_that_troupe_sets(sbx: Sbx) -> None:
    place(sbx).put("policy", {})
    with sbx.left_as_it_was():
        assert place(sbx).get("policy", {}) == {"default": "balanced"}
    assert place(sbx).get("policy", {}) == {"default": "balanced"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", {"default": "balanced", "rules": [rule("kept"), rule("left")]}),
        ("secrets", [{"scope": "global", "type": "registry", "name": "ours"}]),
        ("settings", {"kit.allowedSources": ["docker.io/", "ours/"]}),
        ("templates", {}),
    ],
)
def test_whatever_is_left_or_lost_fails_the_run(sbx: Sbx, name: str, value: object) -> None:
    with pytest.raises(AssertionError), sbx.left_as_it_was():
        place(sbx).put(name, value)


def test_the_wrapper_gives_sbx_the_operators_own_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sbx").write_text('#!/bin/sh\necho "$HOME|${XDG_STATE_HOME-none}|$*"\n', encoding="utf-8")
    (theirs / "sbx").chmod(0o755)
    monkeypatch.setenv("PATH", f"{theirs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/an operator's")
    monkeypatch.delenv("XDG_STATE_HOME")
    wrapper = own_sbx.wrapped(tmp_path / "ours")
    env = {"HOME": "/tmp/test", "XDG_STATE_HOME": "/tmp/test/state", "PATH": "/usr/bin:/bin"}
    said = subprocess.run([wrapper.program, "ls", "a b"], env=env, capture_output=True, check=True).stdout
    assert said == b"/home/an operator's|none|ls a b\n"


@pytest.mark.real_home
def test_where_sbx_is_not_ready_nothing_is_made_and_the_reason_is_told(tmp_path: Path) -> None:
    argv = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--driver", "sbx", "-k", "names or remembers",
        "tests/contract/test_names.py", "tests/integration/test_life_sbx.py",
    ]  # fmt: skip
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TROUPE_TEST_HOME": str(tmp_path / "house")}
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 skipped" in done.stdout
    assert "sbx: not installed" in done.stdout
