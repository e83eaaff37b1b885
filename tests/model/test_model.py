"""Random commands, faults and second processes against a model of a few lines, which says what may be afterwards.

TROUPE_SEED takes a walk again; TROUPE_SECONDS is how long new walks are begun.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.model import rules
from tests.model.conftest import somewhere_fast
from tests.model.faults import Killed
from tests.model.stage import ID, Stage, called, mark, marks, staged
from tests.model.test_hostile import archiving
from troupe_tasks import locks, resources
from troupe_tasks.errors import (
    BackupFailed,
    Locked,
    MoveFailed,
    NotFound,
    SandboxGone,
    TroupeError,
    Unfinished,
)
from troupe_tasks.operations import vault

SECONDS = float(os.environ.get("TROUPE_SECONDS", "15"))
SEED = os.environ.get("TROUPE_SEED")
STEPS = 25
MOVES = ("reset", "resize", "restore", "upgrade")
COMMANDS = (*MOVES, *MOVES, "create", "stop", "start", "backup", "drill", "prune", "delete")


@dataclass(frozen=True)
class Now:
    """What there is of the agent; marks is the digest of its own files, "lost" without a sandbox."""

    exists: bool = False
    wanted: str = "up"
    memory_mib: int = 256
    version: str = ""
    marks: str = ""


def seen(stage: Stage) -> Now:
    """Return what there is in truth."""
    try:
        record = stage.record()
    except NotFound:
        return Now()
    there = stage.sandboxes.place(record.sandbox)
    kept = marks(there) if there.exists() else "lost"
    return Now(True, record.wanted, record.sizes.memory_mib, record.kit.version, kept)


def snapshot(stage: Stage) -> str:
    """Return a digest of everything that a refused command must not change."""
    total = hashlib.sha256(repr((stage.sandboxes.all(), sorted(stage.sandboxes.running))).encode())
    total.update(repr(sorted(stage.keeper.up.items())).encode())
    for place in (stage.paths.agents, stage.paths.state):
        for path in sorted(place.rglob("*")):
            if path.is_file() and not path.is_relative_to(stage.paths.locks):
                total.update(f"{path} ".encode() + path.read_bytes())
    return total.hexdigest()


@dataclass
class Walk:
    """One walk: what the model knows, and a line for every step."""

    stage: Stage
    dice: random.Random
    now: Now = field(default_factory=Now)
    pending: str = ""
    may_be: tuple[Now, ...] = ()
    backups: dict[str, str] = field(default_factory=dict)
    memory_mib: int = 256
    newest: int = 1
    steps: list[str] = field(default_factory=list)

    def step(self) -> None:
        kind = self.dice.random()
        if self.pending:
            if kind < 0.15:
                self.steps.append("the machine restarts")
                self.stage.restart_machine()
            if kind < 0.6:
                self.finish()
            elif kind < 0.8:
                self.refused(
                    self.dice.choice([one for one in COMMANDS if one not in {self.pending, "delete"}])
                )
            else:
                self.command(self.dice.choice([self.pending, "delete"]))
        elif kind < 0.15 and self.now.exists and self.now.marks != "lost":
            self.mark()
        elif kind < 0.2 and self.now.exists and self.now.marks in self.backups.values():
            self.steps.append("the sandbox is lost")
            self.stage.sandboxes.lose(self.stage.record().sandbox)
            self.now = replace(self.now, marks="lost")
        elif kind < 0.3 and self.now.exists:
            self.second_process(self.dice.choice(COMMANDS))
        else:
            self.command(self.dice.choice(COMMANDS))

    def mark(self) -> None:
        word = f"work {len(self.steps)} {self.dice.random()}"
        self.steps.append(word)
        self.now = replace(
            self.now, marks=mark(self.stage.sandboxes.place(self.stage.record().sandbox), word)
        )

    def run(self, name: str) -> object:
        """Run a command, as the model would have it."""
        if name == "resize":
            return self.stage.resize(memory_mib=self.memory_mib)
        commands: dict[str, Callable[[], object]] = {
            "reset": self.stage.reset, "restore": self.stage.restore, "upgrade": self.stage.upgrade,
            "create": self.stage.create, "stop": self.stage.stop, "start": self.stage.start,
            "backup": self.stage.backup, "drill": self.stage.drill, "prune": self.stage.prune,
            "delete": self.stage.delete,
        }  # fmt: skip
        return commands[name]()

    def after(self, name: str) -> Now | None:
        """Return what a command that ends well makes of what there is; None when it is to be refused."""
        now, lost = self.now, self.now.marks == "lost"
        if name == "create":
            return None if now.exists else Now(True, version=f"0.{self.newest}.{self.newest}")
        if not now.exists or (lost and name in {"resize", "upgrade", "backup", "start"}):
            return None
        if name in {"restore", "drill"} and not self.backups:
            return None
        changes: dict[str, Callable[[], Now]] = {
            "reset": lambda: replace(now, marks=""),
            "resize": lambda: replace(now, memory_mib=self.memory_mib),
            "restore": lambda: replace(now, marks=self.backups[self.brought()]),
            "upgrade": lambda: replace(now, version=f"0.{self.newest}.{self.newest}"),
            "stop": lambda: replace(now, wanted="down"),
            "start": lambda: replace(now, wanted="up"),
            "delete": Now,
        }  # fmt: skip
        return changes.get(name, lambda: now)()

    def brought(self) -> str:
        """Return the backup that a restore brings back: the newest proved one, else the newest."""
        listed = [
            one
            for one in vault.listed(self.stage, ID)
            if not one.name.partition("-")[2].startswith("restore")
        ]
        listed = listed or vault.listed(self.stage, ID)
        return ([one.name for one in listed if one.proved] or [one.name for one in listed])[-1]

    def command(self, name: str) -> None:
        """Run a command with or without a fault, and look at what there is then."""
        if not self.pending:
            self.memory_mib = self.dice.choice([256, 384, 512, 768])
            if name in {"upgrade", "create"}:
                self.newest += 1
                self.stage.publish(f"0.{self.newest}.{self.newest}")
        going_on = self.pending == name
        after = None if going_on else self.after(name)
        may_be = self.may_be if going_on else (*(self.may_be or (self.now,)), *((after,) if after else ()))
        if name == "delete":
            may_be = (*may_be, Now())
        fault = self.dice.choice(["", "", "", "killed", "killed", "full", "broken", "no turn", "hostile"])
        self.steps.append(f"{name}, {fault or 'well'}")
        self.guard(name)
        before = snapshot(self.stage)
        error = self.with_fault(name, fault)
        self.steps[-1] += f": {error!r}"
        was = self.now
        self.settle(name, may_be)
        if fault == "no turn" and name in MOVES and after is not None:
            assert isinstance(error, MoveFailed)
            assert self.now == was
        elif fault:
            assert (
                going_on
                or fault not in {"no turn", "hostile"}
                or not self.pending
                or name in {"start", "stop"}
            )
        elif going_on:
            self.has_ended(error)
            assert not self.pending
        elif after is None and name != "delete":
            assert isinstance(error, TroupeError)
            assert snapshot(self.stage) == before or not self.pending
        elif name != "delete" or self.now.exists or before:
            assert error is None or isinstance(error, NotFound)
            assert self.now == (after or Now())

    def with_fault(self, name: str, fault: str) -> BaseException | None:
        number = self.dice.randint(1, self.dice.choice([10, 40, 120]))
        faults, sandboxes = self.stage.faults, self.stage.sandboxes
        sandboxes.turn = "fails" if fault == "no turn" else "answers"
        if fault == "hostile":
            sandboxes.meddled["*", "archive"] = archiving("os.write(1, b'hullo')")
        try:
            if fault == "killed":
                with faults.kill(number):
                    return called(lambda: self.run(name))
            if fault in {"full", "broken"}:
                with faults.fail(number, errno.ENOSPC if fault == "full" else errno.EIO):
                    return called(lambda: self.run(name))
            return called(lambda: self.run(name))
        except Killed as error:
            return error
        finally:
            faults.off()
            sandboxes.turn = "answers"
            sandboxes.meddled.clear()

    def finish(self) -> None:
        """Run what finishes the interrupted operation: it ends, well or where it had been before.

        Of a sandbox that was lost before it began, it is refused, and so ends as well.
        """
        name, may_be = self.pending, self.may_be
        self.steps.append(f"{name} is finished")
        self.guard(name)
        error = called(lambda: self.run(name))
        self.steps[-1] += f": {error!r}"
        self.has_ended(error)
        self.settle(name, may_be)
        assert not self.pending

    def has_ended(self, error: object) -> None:
        lost = self.now.marks == "lost" and isinstance(error, SandboxGone)
        assert error is None or lost or isinstance(error, MoveFailed | BackupFailed)

    def refused(self, name: str) -> None:
        """Run another operation while one is unfinished: it changes nothing."""
        before = snapshot(self.stage)
        error = called(lambda: self.run(name))
        self.steps.append(f"{name} is refused: {error!r}")
        self.has_refused(name, error, Unfinished, before)

    def second_process(self, name: str) -> None:
        """Run a command while another process works on the agent: it changes nothing."""
        before = snapshot(self.stage)
        with locks.agent(self.stage.paths, ID):
            error = called(lambda: self.run(name))
        self.steps.append(f"{name} beside another: {error!r}")
        self.has_refused(name, error, Locked, before)

    def has_refused(self, name: str, error: object, kind: type[TroupeError], before: str) -> None:
        nothing_to_do = name == "upgrade" and error is None  # it has the newest version
        assert nothing_to_do or isinstance(error, kind | NotFound)
        assert snapshot(self.stage) == before

    def guard(self, name: str) -> None:
        """Let no sandbox go that holds the only copy, but by a delete."""
        expected = "" if self.now.marks == "lost" else self.now.marks
        rules.guard(self.stage, expected)
        if name == "delete" or not expected:
            self.stage.sandboxes.before_remove = lambda _sandbox: None

    def settle(self, name: str, may_be: tuple[Now, ...]) -> None:
        """Compare what there is with what may be, and go on from there."""
        expected = "" if self.now.marks == "lost" or not self.now.exists else self.now.marks
        if name == "delete" or (name == "reset" and rules.switched(self.stage)):
            expected = ""
        opened = rules.check(self.stage, expected)
        self.look_at_backups(name)
        there = seen(self.stage)
        if opened is not None and not opened.only_looked:  # else it keeps nothing out, and changed nothing
            self.pending, self.may_be = opened.operation, may_be
            return
        assert there in may_be, f"{there} is none of {may_be}"
        self.now, self.pending, self.may_be = there, "", ()

    def look_at_backups(self, name: str) -> None:
        """Assert that every backup is still what it was, and that a new one is of what the agent has."""
        there = {one.name: rules.restored(self.stage, one.name) for one in vault.listed(self.stage, ID)}
        if name not in {"prune", "delete"}:
            assert self.backups.items() <= there.items()
        for digest in (there[new] for new in there.keys() - self.backups.keys()):
            assert digest in {self.now.marks, *(one.marks for one in self.may_be)}
        self.backups = there


def walk(stage: Stage, seed: int) -> None:
    """Walk from nothing to an end that is finished."""
    found = Walk(stage, random.Random(seed))
    try:
        for _ in range(STEPS):
            found.step()
        if found.pending:
            found.finish()
    except BaseException:
        print(f"\nTROUPE_SEED={seed}", *found.steps, sep="\n  ")
        raise


def seeds() -> Iterator[int]:
    if SEED is not None:
        yield int(SEED)
        return
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        yield random.randrange(1 << 32)


@pytest.mark.timeout(SECONDS + 300)
def test_random_walks_end_where_the_model_says(tmp_path: Path) -> None:
    walked = 0
    for seed in seeds():
        root = somewhere_fast(tmp_path)
        with pytest.MonkeyPatch.context() as patch:
            try:
                walk(staged(root, patch), seed)
            finally:
                patch.undo()
                shutil.rmtree(root, ignore_errors=True)
        walked += 1
    print(f"{walked} walks of {STEPS} steps")
    assert walked


HOLDER = f"""\
import sys
from troupe_tasks import locks
from troupe_tasks.paths import Paths
with locks.agent(Paths.from_env({{"HOME": sys.argv[1]}}), "{ID}"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_every_command_is_refused_while_a_real_second_process_works_on_the_agent(stage: Stage) -> None:
    stage.create()
    stage.backup()
    stage.publish("0.2.2")
    before = snapshot(stage)
    walking = Walk(stage, random.Random(0), memory_mib=512)
    env = {"PYTHONPATH": str(resources.import_root()), "PATH": os.environ["PATH"]}
    words = [sys.executable, "-c", HOLDER, str(stage.root / "home")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for name in sorted(set(COMMANDS)):
            assert isinstance(called(lambda name=name: walking.run(name)), Locked), name  # type: ignore[misc]
        assert snapshot(stage) == before
        holder.kill()
    stage.resize()  # a dead process holds nothing
    assert rules.check(stage, "") is None
