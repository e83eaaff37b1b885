"""A kit's version never moves under an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks.errors import Refused, StateUnreadable
from troupe_tasks.kits import local, pins
from troupe_tasks.paths import Paths

KIT = """\
name = "mime"
version = "1.2.3"
summary = "a kit for a test"
egress = []

[image]
suite = "trixie"
packages = ["python3"]
python = "3.13"

[sizes]
cpus = 1
memory_mib = 512
storage_mib = 1024

[commands]
chat = ["chat"]
turn = ["turn", "{message}"]
self_test = ["turn", "{message}", "{usage}"]
gateway = ["gateway"]
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "kits" / "mime"
    (folder / "managed").mkdir(parents=True)
    (folder / "kit.toml").write_text(KIT, encoding="utf-8")
    (folder / "requirements.lock").write_text("hermes-agent==1.0\n", encoding="ascii")
    (folder / "SOUL.md").write_text("be still\n", encoding="utf-8")
    return folder


def test_the_pinned_kit_stays_as_it_was(source: Path) -> None:
    paths = Paths.from_env()
    pins.pin(local.read(source, name="mime"), paths)
    (source / "SOUL.md").write_text("be loud\n", encoding="utf-8")
    kept = pins.pinned(paths, "mime", "1.2.3")
    assert kept.file("SOUL.md").read_text(encoding="utf-8") == "be still\n"


def test_pinning_twice_is_fine_and_the_same_version_with_other_files_is_refused(source: Path) -> None:
    paths = Paths.from_env()
    kit = local.read(source, name="mime")
    pins.pin(kit, paths)
    pins.pin(kit, paths)
    (source / "SOUL.md").write_text("be loud\n", encoding="utf-8")
    with pytest.raises(Refused, match="has changed"):
        pins.pin(kit, paths)


def test_a_half_copied_kit_of_an_interrupted_run_is_never_seen(source: Path) -> None:
    paths = Paths.from_env()
    half = paths.kits / ".mime-1.2.3.new"
    half.mkdir(parents=True)
    (half / "kit.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(StateUnreadable, match="gone"):
        pins.pinned(paths, "mime", "1.2.3")
    pins.pin(local.read(source, name="mime"), paths)
    assert pins.pinned(paths, "mime", "1.2.3").version == "1.2.3"
    assert not half.exists()
