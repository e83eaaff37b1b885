"""Receipts: any interruption leaves a journal that can be gone on from; any alteration is noticed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from troupe_tasks import journal as journal_module
from troupe_tasks.errors import DiskFull, Refused, StateUnreadable, Tampered, Unfinished
from troupe_tasks.journal import Decided, Journal, Step, perform
from troupe_tasks.paths import Paths

INPUTS: Decided = {"name": "Mr. Doyle", "sizes": {"cpus": 2}, "tags": ["a", None, True, 1.5]}
FINISH = "troupe create hermes --name 'Mr. Doyle'"
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.from_env({"HOME": str(tmp_path)})


def begun(paths: Paths, *, steps: int = 3) -> Journal:
    journal = Journal(paths, "a")
    journal.open("create", inputs=INPUTS, finish=FINISH)
    for number in range(steps):
        journal.write("create", "abc"[number], {"number": number})
    return journal


def files(paths: Paths) -> list[Path]:
    return sorted(paths.receipts("a").iterdir())


def steps_named(*names: str, log: list[str], failing: str = "") -> list[Step[None]]:
    def step(name: str) -> Step[None]:
        def do(_job: None, done: Mapping[str, Decided]) -> Decided:
            log.append(name)
            if name == failing:
                raise KeyboardInterrupt
            return {"did": name, "after": list(done)}

        return Step(name, do, f"doing {name}")

    return [step(name) for name in names]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from(["create", "reset"]), st.dictionaries(st.text(), VALUES, max_size=3)),
        max_size=6,
    )
)
def test_every_prefix_replays_to_the_state_it_had(written: list[tuple[str, dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths.from_env({"HOME": folder})
        journal = Journal(paths, "a")
        states = [journal.unfinished()]
        for number, (operation, decided) in enumerate(written):
            opened = journal.open(operation, inputs=decided, finish="f", supersedes=True)
            states += [None] * (len(journal.receipts) - len(states))
            states.append(journal.unfinished())
            journal.write(opened.operation, "step", decided)
            states.append(journal.unfinished())
            if number % 2:
                journal.write(opened.operation, journal_module.END, {})
                states.append(None)
        kept = journal.receipts
        assert Journal(paths, "a").receipts == kept
        all_files = files(paths) if kept else []
        for length in range(len(kept), 0, -1):
            replayed = Journal(paths, "a")
            assert replayed.receipts == kept[:length]
            if kept[length - 1].step == "step":
                assert replayed.unfinished() in states
            all_files[length - 1].unlink()
        assert Journal(paths, "a").unfinished() is None


def test_an_interrupted_operation_goes_on_after_its_last_receipt(paths: Paths) -> None:
    log: list[str] = []
    journal = Journal(paths, "a")
    opened = journal.open("create", inputs=INPUTS, finish=FINISH)
    with pytest.raises(KeyboardInterrupt):
        perform(journal, opened, None, steps_named("one", "two", "three", log=log, failing="two"))
    again = Journal(paths, "a")
    pending = again.unfinished()
    assert pending is not None
    assert (pending.operation, pending.inputs, pending.finish) == ("create", INPUTS, FINISH)
    shown: list[str] = []
    resumed = again.open("create", inputs=INPUTS, finish=FINISH)
    done = perform(
        again,
        resumed,
        None,
        steps_named("one", "two", "three", log=log),
        told=lambda step: shown.append(step.doing),
    )
    assert log == ["one", "two", "two", "three"]
    assert shown == ["doing two", "doing three"]
    assert done["three"] == {"did": "three", "after": ["one", "two"]}
    assert Journal(paths, "a").unfinished() is None


def test_every_point_of_a_run_can_be_the_last(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    names = ("one", "two", "three")
    points = [f"create/{name}/{when}" for name in names for when in ("before", "done", "after")]
    for point in points:
        log: list[str] = []
        with monkeypatch.context() as patch:

            def crash(reached: str, wanted: str = point) -> None:
                if reached == wanted:
                    raise Crash

            patch.setattr(journal_module, "reached", crash)
            journal = Journal(paths, "a")
            with pytest.raises(Crash):
                perform(
                    journal,
                    journal.open("create", inputs=INPUTS, finish=FINISH),
                    None,
                    steps_named(*names, log=log),
                )
        again = Journal(paths, "a")
        perform(again, again.open("create", inputs=INPUTS, finish=FINISH), None, steps_named(*names, log=log))
        assert sorted(set(log), key=names.index) == list(names)
        repeated = len(log) - len(names)
        assert repeated == (1 if point.endswith("done") else 0)
        assert Journal(paths, "a").unfinished() is None
        shutil.rmtree(paths.receipts("a"))


def test_another_operation_is_refused_with_the_command_that_finishes(paths: Paths) -> None:
    journal = begun(paths)
    with pytest.raises(Unfinished, match="unfinished create") as caught:
        journal.open("reset", inputs={}, finish="troupe reset a")
    assert FINISH in caught.value.hint
    with pytest.raises(Unfinished, match="create with other settings"):
        journal.open("create", inputs={"name": "other"}, finish=FINISH)
    assert len(journal.receipts) == 4


def test_superseding_gives_up_the_other_and_resumes_itself(paths: Paths) -> None:
    opened = begun(paths).open("delete", inputs={}, finish="troupe delete a", supersedes=True)
    assert opened.done == {}
    journal = Journal(paths, "a")
    last = journal.receipts[-1]
    assert (last.operation, last.step) == ("delete", journal_module.BEGIN)
    assert last.decided["gives_up"] == "create"
    assert journal.receipts[-2].operation == "create"  # at no moment is neither of them unfinished
    journal.write("delete", "stop", {})
    resumed = Journal(paths, "a").open("delete", inputs={"changed": True}, finish="x", supersedes=True)
    assert resumed.done == {"stop": {}}


def test_steps_of_an_abandoned_run_are_done_again(paths: Paths) -> None:
    journal = begun(paths)
    journal.open("delete", inputs={}, finish="x", supersedes=True)
    journal.write("delete", journal_module.END, {})
    assert journal.open("create", inputs=INPUTS, finish=FINISH).done == {}


def refused(_job: None, _done: Mapping[str, Decided]) -> Decided:
    raise Refused("no room")


def test_an_operation_that_was_refused_before_it_changed_anything_keeps_nothing_out(paths: Paths) -> None:
    log: list[str] = []
    looks = [replace(step, only_looks=True) for step in steps_named("look", "look-again", log=log)]
    looks[1] = replace(looks[1], do=refused)
    journal = Journal(paths, "a")
    opened = journal.open("resize", inputs={}, finish="again")
    with pytest.raises(Refused):
        perform(journal, opened, None, [*looks, *steps_named("do", log=log)])
    assert Journal(paths, "a").unfinished() is None
    assert log == ["look"]


def test_an_operation_that_failed_after_it_changed_something_is_unfinished(paths: Paths) -> None:
    log: list[str] = []
    (look,) = steps_named("look", log=log)
    late = Step("late", refused, "looking too late", only_looks=True)
    journal = Journal(paths, "a")
    opened = journal.open("resize", inputs={}, finish="again")
    with pytest.raises(Refused):
        perform(journal, opened, None, [replace(look, only_looks=True), *steps_named("do", log=log), late])
    left = Journal(paths, "a").unfinished()
    assert left is not None
    assert list(left.done) == ["look", "do"]


def test_an_operation_that_may_be_left_where_it_is_ends_when_it_fails(paths: Paths) -> None:
    log: list[str] = []
    journal = Journal(paths, "a")
    opened = journal.open("start", inputs={}, finish="again")
    steps = [*steps_named("do", log=log), Step("fail", refused, "failing")]
    with pytest.raises(Refused):
        perform(journal, opened, None, steps, may_be_left=True)
    after = Journal(paths, "a")
    assert after.unfinished() is None
    assert after.receipts[-1].decided == {"by": "start, which failed"}
    assert log == ["do"]


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("old", [b'"number": ', b'"decided": {', b'"at": "2', b'"previous": "', b"\n}"])
def test_any_altered_receipt_is_noticed(paths: Paths, victim: int, old: bytes) -> None:
    begun(paths)
    path = files(paths)[victim]
    data = path.read_bytes()
    new = {b'"number": ': b'"number": 9', b'"decided": {': b'"decided": {"x": 1, ', b'"at": "2': b'"at": "3'}
    path.write_bytes(data.replace(old, new.get(old, b" " + old), 1))
    assert path.read_bytes() != data
    with pytest.raises(Tampered, match="can't be trusted"):
        Journal(paths, "a")


@pytest.mark.parametrize("victim", range(4))
@settings(max_examples=25)
@given(data=st.data())
def test_any_changed_byte_is_noticed(victim: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths.from_env({"HOME": folder})
        begun(paths)
        path = files(paths)[victim]
        whole = bytearray(path.read_bytes())
        where = data.draw(st.integers(0, len(whole) - 1))
        whole[where] ^= data.draw(st.integers(1, 255))
        path.write_bytes(whole)
        with pytest.raises(Tampered):
            Journal(paths, "a")


@pytest.mark.parametrize("victim", range(3))
def test_a_removed_receipt_is_noticed_unless_it_was_the_last(paths: Paths, victim: int) -> None:
    begun(paths)
    files(paths)[victim].unlink()
    with pytest.raises(Tampered, match="broken"):
        Journal(paths, "a")


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize(
    "name", ["{number}-create-z.json", "{number}-reset-{step}.json", "000009-create-{step}.json", "x"]
)
def test_a_renamed_receipt_is_noticed(paths: Paths, victim: int, name: str) -> None:
    begun(paths)
    path = files(paths)[victim]
    number, _, step = path.stem.split("-")
    path.rename(path.with_name(name.format(number=number, step=step)))
    with pytest.raises(Tampered):
        Journal(paths, "a")


def test_reordered_and_copied_receipts_are_noticed(paths: Paths) -> None:
    begun(paths)
    first, second = files(paths)[1:3]
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(Tampered):
        Journal(paths, "a")
    first.write_bytes(contents[0])
    second.write_bytes(contents[1])
    assert len(Journal(paths, "a").receipts) == 4
    shutil.copy(second, second.with_name("000005-create-c.json"))
    with pytest.raises(Tampered):
        Journal(paths, "a")


def test_the_receipts_of_another_agent_do_not_pass_for_ones_own(paths: Paths) -> None:
    begun(paths)
    other = Journal(paths, "b")
    other.open("create", inputs={"name": "b"}, finish="x")
    shutil.copy(next(paths.receipts("b").iterdir()), paths.receipts("a"))
    with pytest.raises(Tampered):
        Journal(paths, "a")


def test_foreign_files_and_links_are_not_read(paths: Paths) -> None:
    begun(paths)
    (paths.receipts("a") / "zzz").write_text("note to self", encoding="utf-8")
    with pytest.raises(Tampered, match="not a receipt"):
        Journal(paths, "a")
    (paths.receipts("a") / "zzz").unlink()
    last = files(paths)[-1]
    last.rename(paths.state / "elsewhere")
    last.symlink_to(paths.state / "elsewhere")
    with pytest.raises(StateUnreadable):
        Journal(paths, "a")


def test_what_a_cut_write_left_is_ignored(paths: Paths) -> None:
    kept = begun(paths).receipts
    (paths.receipts("a") / ".000005-create-d.json.4711.new").write_bytes(b'{"number": 5, "oper')
    journal = Journal(paths, "a")
    assert journal.receipts == kept
    journal.write("create", "d", {})
    assert len(Journal(paths, "a").receipts) == 5


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_a_receipt_that_could_not_be_written_is_not_counted(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    journal = begun(paths)

    def full(*_args: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        with pytest.raises(DiskFull):
            journal.write("create", "d", {})
    assert len(journal.receipts) == len(Journal(paths, "a").receipts) == 4
    journal.write("create", "d", {})
    assert len(Journal(paths, "a").receipts) == 5


def test_a_begin_without_inputs_is_told(paths: Paths) -> None:
    journal = Journal(paths, "a")
    journal.write("create", journal_module.BEGIN, {})
    with pytest.raises(Tampered, match="no inputs"):
        journal.unfinished()


def test_receipts_are_private_and_readable(paths: Paths) -> None:
    begun(paths)
    for path in files(paths):
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_bytes())["operation"] == "create"
    assert paths.receipts("a").stat().st_mode & 0o777 == 0o700
