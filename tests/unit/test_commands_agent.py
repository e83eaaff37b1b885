"""What is said of an agent before a command on it answers: unfinished business, and receipts that were damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from invoke import Context

from tests.registries import a_kit
from troupe_tasks import record as records
from troupe_tasks.commands.agent import telling_afterwards
from troupe_tasks.errors import (
    BackupFailed,
    Interrupted,
    MoveFailed,
    NotFound,
    NotRunning,
    Refused,
    SandboxFailed,
    StateUnreadable,
    Tampered,
    TroupeError,
)
from troupe_tasks.journal import Journal, Step
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.kits import local, pins
from troupe_tasks.namespace import namespace
from troupe_tasks.operations import talk
from troupe_tasks.operations.delete import _book
from troupe_tasks.operations.house import House
from troupe_tasks.operations.inventory import agents
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox.protocol import Listing
from troupe_tasks.secret import Secret

ID = "jane"
FINISH = "troupe resize jane --memory=2"
LOOKING = ("status", "logs", "policy", "backup.list", "secret.list", "secret.check")


def interrupt(_house: House, _agent_id: str) -> None:
    raise KeyboardInterrupt


def interrupted(capsys: pytest.CaptureFixture[str], **flags: object) -> dict[str, object]:
    """Interrupt a command where it says what is unfinished, and return what it says of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("troupe_tasks.commands.agent.say_unfinished", interrupt)
        patch.setattr("troupe_tasks.operations.power.known", interrupt)
        with pytest.raises(SystemExit) as ended:
            namespace["stop" if "agents" in flags else "status"].body(Context(), json=True, **flags)
    assert ended.value.code == 130
    said: dict[str, object] = json.loads(capsys.readouterr().err)
    return said


@pytest.mark.parametrize(
    ("steps", "stands"),
    [
        ((), ""),
        (("plan",), ", and may be stopped until it is finished"),
        (("plan", "quiesce", "archive"), ", and is stopped until it is finished"),
        (("plan", "quiesce", "go-on"), ""),
    ],
)
def test_an_interrupt_tells_what_is_unfinished_what_ends_it_and_how_the_agent_stands(
    paths: Paths, capsys: pytest.CaptureFixture[str], steps: tuple[str, ...], stands: str
) -> None:
    for step in steps:
        Journal(paths, ID).write("resize", step, {})
    said = interrupted(capsys, agent=ID)
    assert said["cause"] == f"jane has an unfinished resize{stands}"
    assert said["hint"] == f"Finish it: `{FINISH}`. Or give the agent up: `troupe delete jane`."


def test_an_interrupt_tells_of_every_agent_that_was_named(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(paths, "john").open("stop", inputs={}, finish="troupe stop john")
    said = interrupted(capsys, agents="jane,john,ann")
    assert said["cause"] == "jane has an unfinished resize; john has an unfinished stop"
    assert said["hint"] == f"Finish them: `{FINISH}`, `troupe stop john`."


def test_an_interrupted_delete_is_finished_and_nothing_else(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(paths, ID).open("delete", inputs={}, finish="troupe delete jane", supersedes=True)
    assert interrupted(capsys, agent=ID)["hint"] == "Finish it: `troupe delete jane`."


@pytest.mark.parametrize("agent", ["ann", "broker"])
def test_an_interrupt_that_left_nothing_half_done_says_so(
    paths: Paths, capsys: pytest.CaptureFixture[str], agent: str
) -> None:
    assert interrupted(capsys, agent=agent)["hint"] == Interrupted.hint


@pytest.mark.parametrize("harm", ["altered", "linked"])
def test_an_interrupt_tells_of_receipts_that_are_damaged(
    paths: Paths, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    {"altered": altered, "linked": linked}[harm](paths)
    assert str(paths.receipts(ID)) in str(interrupted(capsys, agent=ID)["cause"])


class NoSandboxes:
    """A driver that has none."""

    def list(self) -> Listing:
        return Listing(complete=True, sandboxes=())

    def remove(self, _sandbox: str) -> None:
        pass


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Record an agent that no runtime has, with a resize that was interrupted."""
    found = Paths.from_env()
    pins.pin(local.read(a_kit(tmp_path), name="mime"), found)
    records.save(found, Record(
        id=ID, name="Jane", kit=KitPin(type="mime", version="1.2.3"), driver="capsule", isolation="gvisor",
        rehearsal=True, key_tier="none", sizes=Sizes(cpus=1, memory_mib=64, storage_mib=64), created_at="now",
    ))  # fmt: skip
    Journal(found, ID).open("resize", inputs={}, finish=FINISH)
    return found


def run(name: str, **flags: object) -> None:
    namespace[name].body.__wrapped__(Context(), agent=ID, **flags)


def altered(paths: Paths) -> None:
    (receipt,) = paths.receipts(ID).iterdir()
    receipt.write_bytes(receipt.read_bytes().replace(b"resize", b"delete"))


def linked(paths: Paths) -> None:
    (receipt,) = paths.receipts(ID).iterdir()
    receipt.unlink()
    os.symlink("/etc/hostname", receipt)


@pytest.mark.parametrize("name", [*LOOKING, "receipts"])
def test_what_is_unfinished_is_said_first_and_the_answer_follows(
    paths: Paths, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run(name, **({} if name == "logs" else {"json": True}))
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == f"jane has an unfinished resize; finish it with: {FINISH}"
    assert name == "logs" or json.loads(said.out) is not None


@pytest.mark.parametrize("name", ["reset", "restore", "resize", "upgrade", "delete", "backup.take"])
def test_an_agent_that_is_not_there_is_told_before_anything_is_asked(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupe_tasks.commands.output.somebody_is_there", lambda: pytest.fail("it asks"))
    with pytest.raises(NotFound):
        run(name)
    assert capsys.readouterr().out == ""


def test_delete_says_what_it_gives_up_but_not_that_it_is_unfinished_itself(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Refused, match="nothing was deleted"):
        run("delete", yes_i_mean="Somebody else")
    assert "unfinished resize" in capsys.readouterr().err
    Journal(paths, ID).open("delete", inputs={}, finish="troupe delete jane", supersedes=True)
    with pytest.raises(Refused, match="nothing was deleted"):
        run("delete", yes_i_mean="Somebody else")
    assert "unfinished" not in capsys.readouterr().err


@pytest.mark.parametrize("failed", [None, MoveFailed, BackupFailed, SandboxFailed])
@pytest.mark.parametrize("was_cut", [True, False])
def test_work_that_was_cut_is_told_however_the_operation_ends(
    paths: Paths, capsys: pytest.CaptureFixture[str], was_cut: bool, failed: type[TroupeError] | None
) -> None:
    book = Journal(paths, ID)
    book.write("resize", "quiesce", {"cut": True})
    book.write("resize", "end", {})
    with suppress(SandboxFailed), telling_afterwards(House(paths), ID):
        book.open("reset", inputs={}, finish="troupe reset jane")
        book.write("reset", "quiesce", {"cut": was_cut})
        book.write("reset", "end", {})
        if failed is not None:
            raise failed("it failed")
    told = capsys.readouterr().err
    assert ("jane: its work did not end in time and was cut" in told) is (
        was_cut and failed is not SandboxFailed
    )


def test_what_was_left_or_not_archived_is_told(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    book = Journal(paths, ID)
    book.write("resize", "end", {})
    with telling_afterwards(House(paths), ID):
        book.open("restore", inputs={}, finish="troupe restore jane")
        book.write("restore", "look", {"archive": None, "why": "it does not start"})
        book.write("restore", "leave", {"left": "jane", "why": "what is in it was not archived"})
        book.write("restore", "end", {})
    told = capsys.readouterr().err
    assert "jane: what it had was not archived: it does not start" in told
    assert (
        "jane: the sandbox jane is left alone: what is in it was not archived; `troupe delete jane`" in told
    )


def test_who_is_not_running_is_brought_up_by_what_is_unfinished_or_by_a_start(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(House, "driver", lambda _house, _name: NoSandboxes())

    def hint() -> str:
        with pytest.raises(NotRunning) as refused:
            talk.say(House(paths), ID, "hello")
        return refused.value.hint

    assert hint() == f"It has an unfinished resize; finish it: `{FINISH}`."
    book = Journal(paths, ID)
    book.write("resize", "end", {})
    assert hint() == "`troupe start jane` starts it."
    looks = (Step[None]("look", lambda _job, _done: {}, "looking", only_looks=True),)
    book.open("resize", inputs={}, finish=FINISH, steps=looks)  # keeps no start out
    assert hint() == "`troupe start jane` starts it."
    assert interrupted(capsys, agent=ID)["hint"] == Interrupted.hint


def unreadable(paths: Paths) -> str:
    paths.record(ID).write_bytes(b"{}")
    return ID


def named_as_its_id(paths: Paths) -> str:
    records.save(paths, records.load(paths, ID).model_copy(update={"name": ID}))
    return ID


def gone(paths: Paths) -> str:
    paths.record(ID).unlink()
    return ""


@pytest.mark.parametrize("state", [unreadable, named_as_its_id, gone, lambda _paths: "Jane"])
@pytest.mark.parametrize("as_json", [True, False])
def test_delete_tells_which_keys_to_revoke_whatever_the_record_is(
    paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    state: Callable[[Paths], str], as_json: bool,
) -> None:  # fmt: skip
    typed = state(paths)
    monkeypatch.setattr(House, "drivers", lambda _house: ())
    monkeypatch.setattr(House, "driver", lambda _house, _name: NoSandboxes())
    kept = Keystore(paths, ID)
    kept.create(Tier.FILE)
    kept.put("desk", Secret(b"of an agent that goes"))
    run("delete", yes_i_mean=typed, json=as_json)
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said) == {"agent": ID, "deleted": True, "revoke": ["desk"]}
    else:
        assert said.splitlines()[1:] == ["Revoke its key for desk at the provider."]
    assert not paths.keys(ID).exists()


@pytest.mark.parametrize("harm", [altered, linked])
@pytest.mark.parametrize("name", LOOKING)
def test_damaged_receipts_are_told_and_keep_nobody_from_looking(
    paths: Paths, capsys: pytest.CaptureFixture[str], name: str, harm: Callable[[Paths], None]
) -> None:
    harm(paths)
    run(name)
    said = capsys.readouterr().err
    assert str(paths.receipts(ID)) in said
    assert "next: " in said


@pytest.mark.parametrize("harm", [altered, linked])
def test_damaged_receipts_stop_what_changes_the_agent_but_not_a_list_nor_a_delete(
    paths: Paths, harm: Callable[[Paths], None]
) -> None:
    harm(paths)
    for name, flags in (("policy", {"mode": "open"}), ("backup.prune", {"keep": "1"}), ("receipts", {})):
        with pytest.raises((Tampered, StateUnreadable)):
            run(name, **flags)
    assert records.load(paths, ID).policy == "balanced"
    assert str(paths.receipts(ID)) in agents(House(paths))[0].why
    assert _book(paths, ID).receipts == ()
