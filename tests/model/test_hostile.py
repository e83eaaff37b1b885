"""Sandboxes that die, lie, or send what they should not, and disks that fill up, in the middle of every move."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.model import rules
from tests.model.sandboxes import GUEST
from tests.model.stage import ID, Stage, called, mark, marks
from troupe_tasks.errors import TroupeError
from troupe_tasks.operations import inventory, vault

ARCHIVE = (GUEST / "archive.py").read_text(encoding="utf-8")
DIES = "open(os.environ['TROUPE_SANDBOX'] + '/tmp/dies', 'w').close(); os.kill(os.getpid(), 9)"
HELLO = b"hello" * 400
SENT = {"bytes": len(HELLO), "sample": hashlib.sha256(HELLO).hexdigest()}
NONE = {"count": 0, "first": []}
REPORT = {
    "digest": "0" * 64, "files": 1, "folders": 1, "links": 0, "pipes": 0, "bytes": 5, "left_out": NONE,
    "changed": NONE, "raw": NONE, "stream": SENT,
}  # fmt: skip


def archiving(body: str, report: object = REPORT) -> str:
    """Return a program that measures as ours does, and archives in another way."""
    return f"""\
import json, os, sys
if sys.argv[1] == "told":
    print({json.dumps(report)!r})
elif sys.argv[1] == "files":
    {body}
else:
    print({json.dumps({"bytes": 1, "entries": 1})!r})
"""


def measuring(answer: str) -> str:
    """Return a program that archives as ours does, and measures in another way."""
    return ARCHIVE.replace("        print(json.dumps(measure(folders)))", f"        print({answer})")


ENDINGS = {
    "dies at once": archiving(DIES),
    "dies in the middle": archiving(f"os.write(1, bytes(70000)); {DIES}"),
    "sends nothing": archiving("pass"),
    "sends half": archiving("os.write(1, b'he' * 400)"),
    "sends something else": archiving("os.write(1, b'hullo' * 400)"),
    "sends no archive": archiving("os.write(1, b'hello' * 400)"),
    "tells nothing": archiving("os.write(1, b'hello' * 400)", report=[]),
    "tells too much": archiving("os.write(1, b'hello' * 400)", report=[[["x" * 90_000]]]),
    "never ends": archiving("\n    while True: os.write(1, bytes(1 << 20))"),
    # Between what it reads and its second look at it.
    "changes meanwhile": ARCHIVE.replace(
        "self.out.write(bytes(1024))",
        "self.out.write(bytes(1024)); open(folders[0] + b'/new', 'w').close()",
    ),
    "measures nonsense": measuring("'[' * 60000"),
    "measures less than nothing": measuring("""'{"bytes": -1, "entries": 0}'"""),
}  # fmt: skip
# What stops each; a backup that no sandbox takes is found out by the proof, a move by the new sandbox.
SAYS = {
    "dies at once": "not running|archived|status", "dies in the middle": "not running|archived|status",
    "sends nothing": "sent an empty files.tar", "sends half": "800 bytes came, 2000 were sent",
    "sends something else": "is not the one that", "sends no archive": "could not be filled",
    "tells nothing": "does not read", "tells too much": "does not read", "never ends": "cap|more than",
    "changes meanwhile": "changed while", "measures nonsense": "does not read",
    "measures less than nothing": "does not read",
}  # fmt: skip
# Each leaves the agent where it is; a backup and a move rest on the same archive.
COMMANDS: dict[str, Callable[[Stage], object]] = {
    "resize": Stage.resize, "backup": Stage.backup, "restore": Stage.restore, "upgrade": Stage.upgrade,
}  # fmt: skip


def has_something(stage: Stage) -> str:
    """Create an agent with something to lose, a backup, and a version to go to."""
    stage.create()
    mark(stage.sandboxes.place(ID), "what it had")
    stage.backup()
    expected = mark(stage.sandboxes.place(ID), "what it has")
    rules.guard(stage, expected)
    stage.publish("0.2.0")
    return expected


@pytest.mark.parametrize("name", ["resize", "backup"])
def test_what_can_not_be_archived_stays_where_it_is(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = has_something(stage)
    monkeypatch.setattr(vault, "_cap_bytes", lambda _record, _kit: 8 << 20)
    for what, program in ENDINGS.items():
        assert program != ARCHIVE, what
        stage.sandboxes.meddled[ID, "archive"] = program
        error = called(lambda: COMMANDS[name](stage))
        assert isinstance(error, TroupeError), what
        assert re.search(SAYS[what], f"{error} {error.cause}"), (what, str(error))
        assert len(str(error)) < 1500
        (stage.sandboxes.place(ID) / "state/new").unlink(missing_ok=True)
        assert rules.check(stage, expected) is None, what
        assert marks(stage.sandboxes.place(ID)) == expected, what
    stage.sandboxes.meddled.clear()
    COMMANDS[name](stage)
    assert rules.check(stage, expected) is None


@pytest.mark.parametrize("holds", [0, 1 << 62])
def test_who_lies_about_what_it_holds_is_moved_all_the_same(stage: Stage, holds: int) -> None:
    expected = has_something(stage)
    answer = json.dumps({"bytes": holds, "entries": holds})
    stage.sandboxes.meddled[ID, "archive"] = measuring(repr(answer))
    stage.resize()
    assert marks(stage.sandboxes.place(f"{ID}--1")) == expected
    assert rules.check(stage, expected) is None


def test_who_says_that_it_holds_nothing_can_not_fill_the_disk(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = has_something(stage)

    def used_bytes() -> int:
        return sum(path.stat().st_size for path in stage.paths.backups(ID).rglob("*"))

    most = (50 << 10) + 4
    monkeypatch.setattr(vault, "free_mib", lambda _place: most - (used_bytes() >> 20))
    stage.sandboxes.meddled[ID, "archive"] = archiving("\n    while True: os.write(1, bytes(1 << 20))")
    error = called(stage.resize)
    assert "reserve" in str(error)
    assert used_bytes() < 1 << 20
    assert rules.check(stage, expected) is None


@pytest.mark.parametrize("what", [*ENDINGS, "does not start"])
def test_a_restore_is_kept_out_by_nothing_that_the_sandbox_does_and_leaves_it_what_was_not_archived(
    stage: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = has_something(stage)
    (good,) = vault.listed(stage, ID)
    monkeypatch.setattr(vault, "_cap_bytes", lambda _record, _kit: 8 << 20)
    if what == "does not start":
        stage.sandboxes.stuck.add(ID)
    else:
        stage.sandboxes.meddled[ID, "archive"] = ENDINGS[what]
    stage.restore(good.name)
    (stage.sandboxes.place(ID) / "state/new").unlink(missing_ok=True)
    assert stage.record().sandbox == f"{ID}--1"
    assert rules.restored(stage, good.name) == marks(stage.sandboxes.place(f"{ID}--1"))
    (*_, left) = said = inventory.afterwards(stage, ID)
    if what == "sends no archive":  # and its report agreed: only a sandbox that is to take it can tell
        assert "is not relied on" in left
    else:
        assert "what it had was not archived: " in said[0]
    assert marks(stage.sandboxes.place(ID)) == expected
    assert f"the sandbox {ID} is left alone" in left
    assert rules.check(stage, expected) is None


@pytest.mark.parametrize("name", ["resize", "restore", "backup", "upgrade"])
@pytest.mark.parametrize("how", ["says it did", "dies", "fails"])
def test_a_new_sandbox_that_is_not_filled_is_given_up(stage: Stage, name: str, how: str) -> None:
    expected = has_something(stage)
    body = {"says it did": "", "dies": DIES, "fails": "sys.exit(3)"}[how]
    stage.sandboxes.meddled[f"{ID}--1", "restore"] = f"import os, sys; sys.stdin.buffer.read(9000); {body}"
    assert isinstance(called(lambda: COMMANDS[name](stage)), TroupeError)
    assert rules.check(stage, expected) is None
    assert marks(stage.sandboxes.place(ID)) == expected
    stage.sandboxes.meddled.clear()
    COMMANDS[name](stage)
    assert rules.check(stage, expected) is None


LOOKS = (
    "{}", "[]", "null", '{"../../etc/passwd": "edited"}', '{"skills/one.md": "good"}',
    '{"skills/one.md": "edited", "skills/even.md": "new", "skills/more.md": "edited"}',
    '{"/etc/passwd": "edited", "skills/even.md": "new"}', "[" * 50_000, '{"skills/one.md": ' * 5000,
    "{" + ", ".join(f'"{number}": "new"' for number in range(50_000)) + "}",
)  # fmt: skip


def test_what_it_tells_of_its_seeds_is_believed_of_those_alone_that_were_asked_for(stage: Stage) -> None:
    expected = has_something(stage)
    for number, answer in enumerate(LOOKS):
        stage.sandboxes.meddled["*", "seeds"] = f"print({answer!r})"
        assert isinstance(called(stage.upgrade), TroupeError), number
        assert rules.check(stage, expected) is None
        assert marks(stage.sandboxes.place(ID)) == expected
        assert not [path for path in stage.paths.live_apply(ID).rglob("*") if path.is_file()]
    stage.sandboxes.meddled.clear()
    stage.upgrade()
    assert rules.check(stage, expected) is None


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", ["resize", "backup", "upgrade"])
def test_a_disk_that_fills_up_under_an_archive(stage: Stage, name: str, share: float) -> None:
    stage.create()
    (stage.sandboxes.place(ID) / "state/large").write_bytes(os.urandom(1 << 20))
    expected = mark(stage.sandboxes.place(ID), "what it has")
    rules.guard(stage, expected)
    stage.publish("0.2.0")
    with small_disk(stage.paths.backups(ID), int((1 << 20) * share)):
        assert "no room left" in str(called(lambda: COMMANDS[name](stage)))
        assert rules.check(stage, expected) is None
        assert marks(stage.sandboxes.place(ID)) == expected
    COMMANDS[name](stage)
    assert rules.check(stage, expected) is None
    assert rules.in_archives(stage, expected)
