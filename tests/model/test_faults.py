"""Every operation on an agent that is there, with every one of its calls failing, or being its last."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from itertools import count

import pytest

from tests.model import rules
from tests.model.faults import Killed
from tests.model.stage import ID, Stage, called, mark, marks
from troupe_tasks.errors import BackupFailed, DiskFull, MoveFailed
from troupe_tasks.operations.house import gateway_name

# All calls with both codes take minutes: without TROUPE_SECONDS each call of the long ones fails with one of them, and
# the three that move the same way share the calls among them.
LONG = "TROUPE_SECONDS" in os.environ
CODES = (errno.ENOSPC, errno.EIO)


class Play:
    """One operation on an agent that has something to lose, again and again."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.name, self.round = stage, name, 0
        stage.create()
        self.expected = self.mark()
        if name == "restore":
            stage.backup()

    def mark(self) -> str:
        expected = mark(self.stage.sandboxes.place(self.stage.record().sandbox), "what it has")
        rules.guard(self.stage, expected)
        return expected

    def again(self) -> None:
        """Have something to do: the next size, the next version, something to lose."""
        self.round += 1
        self.stage.prune(keep=1)
        for sandbox in rules.left_alone(self.stage):
            self.stage.sandboxes.lose(sandbox)
        # To read the receipts of a hundred moves would be most of the time.
        shutil.rmtree(self.stage.paths.receipts(ID), ignore_errors=True)
        if self.name == "upgrade":
            self.stage.publish(f"0.{self.round}.{self.round}")
        elif self.name == "reset" and not rules.in_sandboxes(self.stage, self.expected):
            self.expected = self.mark()
        elif self.name == "start":
            self.stage.stop()
        elif self.name == "stop":
            self.stage.start()

    def command(self) -> object:
        """Run it."""
        if self.name == "resize":
            return self.stage.resize(memory_mib=256 + 64 * (self.round % 8))
        return {
            "reset": self.stage.reset, "restore": self.stage.restore, "backup": self.stage.backup,
            "upgrade": self.stage.upgrade, "start": self.stage.start, "stop": self.stage.stop,
        }[self.name]()  # fmt: skip

    def check(self) -> bool:
        """Assert the rules, and return whether it is unfinished; what a reset has given up is no loss."""
        given_up = self.name == "reset" and rules.switched(self.stage)
        return rules.check(self.stage, "" if given_up else self.expected) is not None

    def finish(self) -> None:
        """Run it until it ends well: what had failed before may first send the agent back."""
        error = called(self.command)
        if isinstance(error, MoveFailed | BackupFailed):
            assert not self.check()
            error = called(self.command)
        assert error is None
        assert not self.check()


MOVES = ("resize", "restore", "upgrade", "reset")
OPERATIONS = (*MOVES, "backup", "start", "stop")
# So many calls at least are watched; fewer mean that the seams are not where they were.
LEAST = {"start": 12, "stop": 12}
SHARE = {"resize": 0, "restore": 1, "upgrade": 2}


def codes(name: str, number: int) -> Iterator[int]:
    if LONG or name in LEAST:
        yield from CODES
    elif SHARE.get(name, number % 3) == number % 3:
        yield CODES[number % 2]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.timeout(900)
def test_the_nth_write_sync_or_rename_fails(stage: Stage, name: str) -> None:
    play = Play(stage, name)
    for number in count(1):
        for code in codes(name, number):
            play.again()
            with stage.faults.fail(number, code):
                error = called(play.command)
            if not stage.faults.what:
                assert error is None
                assert number > LEAST.get(name, 40), "the seams were not watched"
                return
            if play.check():
                play.finish()


@pytest.mark.timeout(300)
def test_it_is_stopped_whichever_write_finds_the_disk_full(stage: Stage) -> None:
    play = Play(stage, "stop")
    for number in count(1):
        play.again()
        with stage.faults.fail(number, errno.ENOSPC, and_all_after=True):
            error = called(play.command)
        assert not stage.keeper.up[gateway_name(ID)]
        assert stage.record().sandbox not in stage.sandboxes.running
        if not stage.faults.what:
            assert error is None
            assert number > LEAST["stop"], "the seams were not watched"
            return
        assert isinstance(error, DiskFull)
        assert f"{ID} is stopped" in error.what
        play.finish()
        assert stage.record().wanted == "down"


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.timeout(900)
def test_it_ends_at_any_call_and_goes_on(stage: Stage, name: str) -> None:
    play = Play(stage, name)
    play.again()
    begins, at, places = 0, 1, 0

    def names() -> set[str]:
        return {path.name for path in stage.paths.receipts(ID).glob("[!.]*")}

    while True:
        known = names()
        try:
            with stage.faults.kill(at):
                play.command()
        except Killed:
            places += 1
        else:
            break
        unfinished = play.check()
        new = names() - known
        begins += sum(name.endswith("-begin.json") for name in new)
        if begins and not unfinished:
            break
        at = 1 if new else at + 1
    assert not play.check()
    assert begins == 1
    assert places > LEAST.get(name, 60)
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == ("" if name == "reset" else play.expected)
    assert stage.record().move == (1 if name in MOVES else 0)
