"""The reserve is asked of the disks that are written to: the backups' and the sandboxes', be they two or one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest

from tests.model import rules
from tests.model.stage import ID, Stage, called, mark, marks
from tests.model.test_hostile import small_disk
from troupe_tasks.errors import OverBudget, TroupeError
from troupe_tasks.host import disks
from troupe_tasks.operations import vault

CONTENT_BYTES = 6 << 20
COMMANDS: dict[str, Callable[[Stage], object]] = {
    "resize": Stage.resize, "backup": Stage.backup, "upgrade": Stage.upgrade, "drill": Stage.drill,
    "restore": Stage.restore,
}  # fmt: skip
BACKUPS, SANDBOXES = "the backups", "the sandboxes"


def has_much(stage: Stage) -> str:
    """Create the agent, give it something, and back it up."""
    stage.create()
    (stage.sandboxes.place(ID) / "state/large").write_bytes(os.urandom(CONTENT_BYTES))
    expected = mark(stage.sandboxes.place(ID), "what it has")
    stage.backup()
    stage.publish("0.2.0")
    rules.guard(stage, expected)
    return expected


def refused(stage: Stage, name: str, expected: str) -> OverBudget:
    """Check that a command is refused before anything is stopped, and return how."""
    stage.said.clear()
    error = called(lambda: COMMANDS[name](stage))
    assert isinstance(error, OverBudget), error
    assert not [said for said in stage.said if "finish" in said]
    assert rules.check(stage, expected) is None
    assert marks(stage.sandboxes.place(ID)) == expected
    return error


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("resize", BACKUPS), ("resize", SANDBOXES), ("backup", BACKUPS), ("backup", SANDBOXES), ("upgrade", BACKUPS),
        ("restore", BACKUPS), ("restore", SANDBOXES), ("drill", SANDBOXES),
    ],
)  # fmt: skip
def test_a_small_disk_is_seen_before_anything_is_stopped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str, full: str
) -> None:
    expected = has_much(stage)
    monkeypatch.setattr(vault, "free_mib", disks.free_mib)
    monkeypatch.setattr(vault, "_RESERVE_MIB", 1)
    place, size_bytes = stage.paths.sandboxes, 5 << 20
    if full == BACKUPS:
        place, size_bytes = stage.paths.backups(ID), size_bytes + CONTENT_BYTES
        place.rename(stage.root / "first")
    with small_disk(place, size_bytes):
        if full == BACKUPS:
            shutil.copytree(stage.root / "first", place, dirs_exist_ok=True)
        error = refused(stage, name, expected)
        assert str(place) in error.cause
        assert "reserve of 1 MiB" in error.cause


@pytest.mark.parametrize("name", COMMANDS)
def test_two_disks_need_to_hold_their_own_and_one_disk_both(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = has_much(stage)
    one_is_enough = (50 << 10) + int(1.5 * CONTENT_BYTES / (1 << 20))
    monkeypatch.setattr(vault, "free_mib", lambda _place: one_is_enough)
    if name != "drill":  # which makes no archive
        assert "its archive and a second sandbox" in refused(stage, name, expected).what
    monkeypatch.setattr(vault, "device", hash)
    if name == "restore":  # what it archives is proved in a third one
        assert "a second sandbox" in refused(stage, name, expected).what
        return
    COMMANDS[name](stage)
    assert rules.check(stage, expected) is None


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("resize", BACKUPS), ("resize", SANDBOXES), ("backup", BACKUPS), ("backup", SANDBOXES), ("restore", BACKUPS),
        ("restore", SANDBOXES), ("drill", SANDBOXES),
    ],
)  # fmt: skip
def test_while_a_disk_is_written_to_it_is_asked_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str, full: str
) -> None:
    expected = has_much(stage)
    place, told = stage.paths.sandboxes, "fill the sandbox"
    if full == BACKUPS:
        place, told = stage.paths.backups(ID), "write files.tar"
    begun: list[str] = []
    before = stage.sandboxes.before_transfer

    def transfer(sandbox: str) -> None:
        before(sandbox)
        begun.append(sandbox)

    monkeypatch.setattr(stage.sandboxes, "before_transfer", transfer)
    monkeypatch.setattr(
        vault, "free_mib", lambda asked: 0 if begun and asked.is_relative_to(place) else 1 << 20
    )
    error = called(lambda: COMMANDS[name](stage))
    assert isinstance(error, TroupeError)
    assert told in f"{error} {error.cause}"
    assert rules.check(stage, expected) is None
