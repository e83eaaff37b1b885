"""The release session: the same bytes from the same commit, and all in them that troupe needs."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import releasing

ROOT = Path(__file__).parents[2]
ADDRESS = "https://troupe.example/releases"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "clone"
    releasing.release(folder, f"{ADDRESS}/")
    return folder


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def contents(dist: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in dist.iterdir()}


@pytest.mark.usefixtures("open_umask")
def test_a_second_build_of_a_commit_gives_the_same_bytes(clone: Path, tmp_path: Path) -> None:
    again = releasing.clone(tmp_path / "elsewhere")
    for path in again.rglob("*.py"):
        os.utime(path, (1, 1))
    assert releasing.build(again, "--address", ADDRESS).returncode == 0
    assert contents(again / "dist") == contents(clone / "dist")


def test_every_file_has_its_sum(clone: Path) -> None:
    made = contents(clone / "dist")
    version = made["VERSION"].decode().strip()
    named = [row.split("  ") for row in made.pop("SHA256SUMS").decode().splitlines()]
    assert {name: total for total, name in named} == {
        name: hashlib.sha256(data).hexdigest() for name, data in made.items()
    }
    wheel, sdist = f"troupe-{version}-py3-none-any.whl", f"troupe-{version}.tar.gz"
    assert sorted(made) == sorted(["VERSION", "install.sh", "requirements.lock", wheel, sdist])


def test_the_wheel_carries_every_folder_and_its_own_stamp(clone: Path) -> None:
    (wheel,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("troupe_tasks/_data/") for name in archive.namelist()}
        stamp = json.loads(archive.read("troupe_tasks/_data/release.json"))
    for folder in ("guest", "kits", "units"):
        ours = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert {path.relative_to(ROOT).as_posix() for path in ours} <= held
    assert stamp["address"] == ADDRESS
    assert not any("tests/" in name for name in held)


def test_the_sdist_and_the_installer_are_stamped_too(clone: Path) -> None:
    (sdist,) = (clone / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("troupe_tasks/_data/release.json") for name in archive.getnames())
    assert f"\naddress={ADDRESS}\n" in (clone / "dist" / "install.sh").read_text()


@pytest.mark.parametrize(
    "words", [("--address", "http://troupe.example"), ("--address", "https://a/$(id)"), ("--elsewhere",)]
)
def test_a_bad_address_is_refused(clone: Path, words: tuple[str, ...]) -> None:
    done = releasing.build(clone, *words)
    assert done.returncode != 0
    assert "it takes nothing but `--address https://HOST/FOLDER`" in done.stderr


def test_what_is_not_committed_is_no_release(tmp_path: Path) -> None:
    clone = releasing.clone(tmp_path / "clone")
    (clone / "kits" / "hermes" / "more.txt").touch()
    done = releasing.build(clone)
    assert done.returncode != 0
    assert "a release is what is committed" in done.stderr
    assert not (clone / "dist").exists()
