"""What happens between a command that was cut and the one that goes on: nothing is lost, and nobody is kept out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.model import rules
from tests.model.faults import Killed
from tests.model.stage import ID, Stage, called, mark, marks
from tests.model.test_scenes import has_something, killed_after
from troupe_tasks import budget
from troupe_tasks.archives.disk import RECORD
from troupe_tasks.errors import SandboxGone, Unfinished
from troupe_tasks.operations import moving, room, talk, vault

FRESH = f"{ID}--1"
THIRD = f"{ID}--2"


def command(stage: Stage, name: str) -> Callable[[], object]:
    found: Callable[[], object] = getattr(stage, name)
    return found


def ready(stage: Stage, name: str) -> str:
    """Give the agent something to lose, and the operation something to do."""
    expected = has_something(stage)
    if name == "restore":
        stage.backup()
    if name == "upgrade":
        stage.publish("0.9.0")
    return expected


@pytest.mark.parametrize("name", ["resize", "upgrade", "restore"])
def test_what_it_did_after_its_archive_was_taken_comes_along(stage: Stage, name: str) -> None:
    ready(stage, name)
    old, number = stage.record().sandbox, 1
    known = set(stage.paths.backups(ID).glob(f"*/{RECORD}"))
    while not set(stage.paths.backups(ID).glob(f"*/{RECORD}")) - known:
        with pytest.raises(Killed), stage.faults.kill(number):
            command(stage, name)()
        number += 1
    begun = rules.pending(stage)
    assert begun is not None
    assert "archive" not in begun.done
    assert old in stage.sandboxes.running
    assert isinstance(called(lambda: talk.say(stage, ID, "hullo")), Unfinished)
    late = mark(stage.sandboxes.place(old), "what it did meanwhile")
    rules.guard(stage, late)
    command(stage, name)()
    if name == "restore":  # which brings the backup back, and archives what there was last
        assert rules.in_archives(stage, late)
    else:
        assert marks(stage.sandboxes.place(stage.record().sandbox)) == late
    assert rules.check(stage, late) is None


def test_nobody_talks_to_it_until_a_backup_has_its_archive(stage: Stage) -> None:
    has_something(stage)
    killed_after("quiesce", stage, stage.backup)
    assert isinstance(called(lambda: talk.say(stage, ID, "hullo")), Unfinished)
    killed_after("go-on", stage, stage.backup)
    assert not isinstance(called(lambda: talk.say(stage, ID, "hullo")), Unfinished)


MOVES = ["reset", "resize", "restore", "upgrade"]


@pytest.mark.parametrize("name", [*MOVES, "backup", "start"])
def test_what_was_interrupted_while_it_looked_was_never_begun(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ready(stage, name)
    if name == "start":
        stage.stop()

    def interrupted(*_given: object, **_named: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for what in ("listings", "driver"):
            patch.setattr(type(stage), what, interrupted)
        with pytest.raises(KeyboardInterrupt):
            command(stage, name)()
    assert rules.pending(stage) is None
    assert rules.check(stage, expected) is None


@pytest.mark.parametrize("name", MOVES)
def test_what_was_killed_while_it_looked_keeps_nobody_out(stage: Stage, name: str) -> None:
    expected = ready(stage, name)
    number, known = 1, 0
    while stage.record().moving_to is None:  # in the last of its looks, whose receipt is not written yet
        with pytest.raises(Killed), stage.faults.kill(number):
            command(stage, name)()
        done = len(begun.done) if (begun := rules.pending(stage)) is not None else 0
        number, known = (1, done) if done > known else (number + 1, known)
    begun = rules.pending(stage)
    assert begun is not None
    assert begun.only_looked
    stage.stop()
    assert rules.pending(stage) is None
    assert stage.record().moving_to is None
    stage.start()
    stage.backup()
    assert rules.check(stage, expected) is None


def test_one_that_was_killed_while_it_looked_goes_on_with_other_words(stage: Stage) -> None:
    expected = has_something(stage)
    killed_after("look", stage, lambda: stage.resize(memory_mib=384))
    stage.resize(memory_mib=512)
    assert stage.record().sizes.memory_mib == 512
    assert rules.check(stage, expected) is None


@pytest.mark.parametrize("second", ["upgrade", "restore"])
@pytest.mark.parametrize("first", [*MOVES, "backup", "drill"])
def test_whatever_was_killed_while_it_looked_something_else_begins(
    stage: Stage, first: str, second: str
) -> None:
    has_something(stage)
    stage.backup()
    stage.publish("0.9.0")
    number = 1
    while (begun := rules.pending(stage)) is None:
        with pytest.raises(Killed), stage.faults.kill(number):
            command(stage, first)()
        number += 1
    assert begun.only_looked
    command(stage, second)()
    assert rules.pending(stage) is None
    assert stage.record().move == 1


def test_a_restore_that_only_looked_goes_on_with_no_backup_that_was_pruned_since(stage: Stage) -> None:
    has_something(stage)
    stage.backup()
    oldest = vault.listed(stage, ID)[0].name
    stage.resize()
    killed_after("look", stage, lambda: stage.restore(oldest))
    stage.prune(keep=1)
    assert oldest not in [one.name for one in vault.listed(stage, ID)]
    stage.restore()


def test_once_all_was_looked_at_it_has_to_be_finished(stage: Stage) -> None:
    has_something(stage)
    killed_after("plan", stage, lambda: stage.resize(memory_mib=384))
    for other in (stage.backup, stage.stop, lambda: stage.resize(memory_mib=512), stage.reset):
        assert isinstance(called(other), Unfinished)


@pytest.mark.parametrize("short", ["disk", "memory"])
def test_a_restore_whose_own_archive_can_not_be_proved_here_keeps_what_there_was(
    stage: Stage, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = has_something(stage)
    stage.backup()
    now = mark(stage.sandboxes.place(ID), "what it did since")
    rules.guard(stage, now)
    if short == "disk":  # two sandboxes fit, a third one does not
        monkeypatch.setattr(
            vault, "spare_mib", lambda *_given, **_named: 0 if len(stage.sandboxes.all()) > 2 else 1 << 20
        )
    else:
        over = budget.Verdict(lines=(), refusals=("no memory is left",), notes=())
        monkeypatch.setattr(room, "verdict_beside", lambda *_given: over)
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == brought
    assert rules.check(stage, now) is None
    assert ID in stage.sandboxes.all()
    assert THIRD not in stage.sandboxes.all()
    assert ID in rules.left_alone(stage)


def test_what_a_restore_will_prove_is_part_of_the_room_that_it_asks_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_something(stage)
    stage.backup()
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(moving, "held_bytes", lambda *_given: 100 << 20)
    monkeypatch.setattr(
        vault, "refuse_without_room",
        lambda *_given, archive_bytes, sandbox_bytes, **_named: asked.append((archive_bytes, sandbox_bytes)),
    )  # fmt: skip
    stage.resize()
    stage.restore()
    moved, restored = asked
    assert moved[1] == 100 << 20
    assert restored[1] > 100 << 20  # what the backup holds, and what is held now


def test_a_restore_run_twice_brings_the_same_back_and_its_undoing_has_to_be_named(stage: Stage) -> None:
    good = has_something(stage)
    stage.backup()
    bad = mark(stage.sandboxes.place(ID), "what went wrong")
    stage.sandboxes.before_remove = lambda _sandbox: None
    for _ in range(2):
        stage.restore()
        assert marks(stage.sandboxes.place(stage.record().sandbox)) == good
    (undoing,) = [one for one in rules.in_archives(stage, bad) if one.endswith("-restore")]
    stage.restore(undoing)
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == bad
    stage.prune(keep=1)
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == good


def test_a_proof_that_was_cut_leaves_no_sandbox_behind(stage: Stage) -> None:
    expected = has_something(stage)
    stage.backup()
    mark(stage.sandboxes.place(ID), "what it did since")
    stage.sandboxes.before_remove = lambda _sandbox: None
    killed_after("go-on", stage, stage.restore)
    number = 1
    while THIRD not in stage.sandboxes.all():
        with pytest.raises(Killed), stage.faults.kill(number):
            stage.restore()
        number += 1
    stage.sandboxes.lose(ID)
    stage.restore()
    assert stage.sandboxes.all() == (FRESH,)
    assert rules.check(stage, expected) is None


def test_a_new_sandbox_is_new_whatever_was_left_under_its_name(stage: Stage) -> None:
    has_something(stage)
    told: list[str] = []

    def not_listed(sandbox: str) -> None:
        if sandbox == FRESH and not told:
            told.append(sandbox)
            raise SandboxGone(f"{sandbox} is not listed")

    stage.sandboxes.before_remove = not_listed
    stage.backup()
    assert FRESH in stage.sandboxes.all()
    stage.reset()
    assert stage.record().sandbox == FRESH
    assert marks(stage.sandboxes.place(FRESH)) == ""
