"""What the capsule keeps about its sandboxes, where it is damaged (the sandboxes are the contract suite's)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.test_durable import nested
from troupe_tasks.errors import FolderUnusable, NotReady, StateUnreadable
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.capsule import saved
from troupe_tasks.sandbox.protocol import Isolation, SandboxSpec, Sizes

SIZES = Sizes(cpus=1, memory_mib=256, storage_mib=16, processes=64, open_files=256)
DAMAGE = ["", "{", "[]", '{"identity": "bent"}', None]


@pytest.fixture
def paths() -> Paths:
    return Paths.from_env()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return a folder with the places that a sandbox mounts things on."""
    for name in ("state", "workspace", "tmp", "proc", "dev", "run/troupe/egress", "run/troupe/guest"):
        (tmp_path / "image" / name).mkdir(parents=True)
    return tmp_path / "image"


def made(paths: Paths, image: Path, sandbox_id: str) -> saved.Saved:
    spec = SandboxSpec(id=sandbox_id, sizes=SIZES, image=image, egress=paths.egress(sandbox_id), env={})
    kept = saved.save_new(paths, spec, Isolation.NAMESPACES)
    saved.make_disk(paths, kept)
    return kept


def damage(paths: Paths, sandbox_id: str, text: str | None) -> None:
    """Put text into a sandbox's file, or another sandbox's own file in its place."""
    file = paths.sandbox(sandbox_id) / "spec.json"
    file.write_text(
        file.read_text().replace(f'"id": "{sandbox_id}"', '"id": "other"') if text is None else text
    )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have ranges of user IDs")
@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_file_stops_no_create_and_its_range_stays_its_own(
    paths: Paths, image: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setattr(saved, "_UID_SLOTS", 3)
    bases = {made(paths, image, "bob").uid_base, made(paths, image, "jane").uid_base}
    damage(paths, "bob", text)
    with pytest.raises(StateUnreadable):
        saved.load(paths, "bob")
    bases.add(made(paths, image, "harry").uid_base)
    assert len(bases) == 3
    with pytest.raises(NotReady, match="every range of user IDs is taken"):
        made(paths, image, "mo")
    saved.forget(paths, "bob")
    assert made(paths, image, "mo").uid_base in bases


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have ranges of user IDs")
def test_a_sandbox_that_goes_while_ranges_are_looked_at_is_no_obstacle(
    paths: Paths, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "folders", lambda _paths: iter(["gone"]))
    assert made(paths, image, "jane").uid_base is not None


def test_what_a_disk_of_folders_takes_is_counted_however_deep_it_is(paths: Paths, image: Path) -> None:
    kept = saved.Saved.model_validate(
        {**made(paths, image, "jane").model_dump(), "uid_base": None}  # as an ordinary user makes it
    )
    top = saved.disk(paths, kept)
    top.mkdir(exist_ok=True)
    nested(top / "deep", 1200)
    (top / "file").write_bytes(bytes(3 << 20))
    assert saved.used_mib(paths, kept) >= 3
    saved.forget(paths, "jane")
    assert list(paths.sandboxes.iterdir()) == []


def test_a_folder_that_became_a_link_is_removed_neither_itself_nor_through_it(
    paths: Paths, image: Path
) -> None:
    made(paths, image, "jane")
    elsewhere = paths.sandboxes / "elsewhere"
    paths.sandbox("jane").rename(elsewhere)
    paths.sandbox("jane").symlink_to(elsewhere)
    before = sorted(elsewhere.iterdir())
    with pytest.raises(FolderUnusable, match="is a link"):
        saved.forget(paths, "jane")
    assert sorted(elsewhere.iterdir()) == before
    assert paths.sandbox("jane").is_symlink()
