"""Backups are as old as their names say to each other, whatever the clock does between them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo

import pytest

from tests.model.stage import ID, Stage, mark, marks
from troupe_tasks.operations import vault

SetClock = Callable[[str], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Return what sets the clock that backups are named by."""

    def set_to(text: str) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.fromisoformat(text).replace(tzinfo=tz)

        monkeypatch.setattr(vault, "datetime", Clock)

    return set_to


def backed_up(stage: Stage, word: str) -> str:
    """Give the agent something else, back it up, and return the digest of what it has."""
    found = mark(stage.sandboxes.place(stage.record().sandbox), word)
    stage.backup()
    return found


def names(stage: Stage) -> list[str]:
    return [one.name for one in vault.listed(stage, ID)]


def test_after_a_clock_that_ran_ahead_the_newest_backup_is_still_the_last(
    stage: Stage, clock: SetClock
) -> None:
    stage.create()
    clock("2031-01-01T00:00:00")
    backed_up(stage, "first")
    clock("2026-11-30T09:00:00")
    backed_up(stage, "second")
    clock("2026-11-30T09:05:00.700000")
    last = backed_up(stage, "third")
    assert names(stage) == ["20310101T000000Z-backup", "20310101T000001Z-backup", "20310101T000002Z-backup"]
    assert stage.prune(keep=1) == ["20310101T000000Z-backup", "20310101T000001Z-backup"]
    mark(stage.sandboxes.place(stage.record().sandbox), "what came after")
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == last


def test_a_clock_that_goes_back_or_stands_still_makes_no_backup_the_older_one(
    stage: Stage, clock: SetClock
) -> None:
    stage.create()
    made: list[str] = []
    for time in (
        "2026-11-30T09:00:00",
        "2026-11-30T09:00:00.9",
        "2026-10-25T00:00:00",
        "2026-11-30T10:00:00",
    ):
        clock(time)
        stage.backup()
        made += [name for name in names(stage) if name not in made]
        stage.resize()
        made += [name for name in names(stage) if name not in made]
    assert len(made) == 8
    assert made == sorted(made) == names(stage)
    assert made[-2] == "20261130T100000Z-backup"
    assert stage.prune(keep=1) == made[:-1]


def test_a_folder_that_bears_no_date_keeps_no_backup_from_its_name(stage: Stage, clock: SetClock) -> None:
    for name in ("99999999T999999Z-mine", "99991231T235959Z-mine"):
        (stage.paths.backups(ID) / name).mkdir(parents=True)
    clock("2026-11-30T09:00:00")
    assert vault.new_name(stage, ID, "backup") == "20261130T090000Z-backup"
