"""What an update refuses before it asks anything of anybody."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from troupe_tasks import releases, resources, stamp
from troupe_tasks.errors import Refused
from troupe_tasks.operations.update import update
from troupe_tasks.paths import Paths


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(releases, "newest")


def installed(monkeypatch: pytest.MonkeyPatch, *, address: str, prefix: Path) -> None:
    monkeypatch.setattr(resources, "checkout", lambda: None)
    monkeypatch.setattr(
        stamp, "read", lambda: stamp.Stamp(version="1.0.0", commit="0123456789ab", address=address)
    )
    monkeypatch.setattr(sys, "prefix", str(prefix))


def test_a_checkout_is_refused() -> None:
    with pytest.raises(Refused, match="this troupe is a checkout"):
        update(Paths.from_env())


def test_a_build_without_an_address_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths.from_env()
    installed(monkeypatch, address="", prefix=paths.data / "releases/1.0.0-0")
    with pytest.raises(Refused, match="this build has no release address") as refused:
        update(paths)
    assert "--from DIR" in refused.value.hint


def test_one_that_something_else_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, address="https://troupe.example", prefix=tmp_path / "pipx")
    with pytest.raises(Refused, match="not put here by its installer"):
        update(Paths.from_env())


def test_the_installer_runs_with_the_persons_folders_and_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = Paths.from_env()
    installed(monkeypatch, address="https://troupe.example", prefix=paths.data / "releases/1.0.0-0")
    monkeypatch.setattr(releases, "newest", lambda _address: "1.1.0", raising=False)
    monkeypatch.setattr(
        releases, "installer", lambda _address: f"env >{tmp_path}/env; echo $* >{tmp_path}/words".encode()
    )
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", f"/srv/{name}")
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    assert update(paths).updated
    found = (tmp_path / "env").read_text()
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        assert f"XDG_{name}_HOME=/srv/{name}\n" in found
    assert "a key" not in found
    assert (tmp_path / "words").read_text() == "\n"
    update(paths, without_units=True)
    assert (tmp_path / "words").read_text() == "--without-units\n"
