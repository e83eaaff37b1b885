"""Single scenes on the stage: what stands in the way of a move, and what it leaves of itself."""

from __future__ import annotations

import errno
import inspect
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.model import rules
from tests.model.faults import Killed
from tests.model.stage import ID, NAME, Stage, called, mark, marks
from troupe_tasks import locks
from troupe_tasks import record as records
from troupe_tasks.errors import (
    BackupFailed,
    DiskFull,
    FolderUnusable,
    Locked,
    MoveFailed,
    NotReady,
    OverBudget,
    SandboxFailed,
    SandboxGone,
    Unfinished,
    UsageError,
)
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.kits import image, local, pins
from troupe_tasks.names import agent_id
from troupe_tasks.operations import backup, create, move, moving, power, upgrade, vault
from troupe_tasks.operations.house import gateway_name
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret
from troupe_tasks.sizes import Wanted


def has_something(stage: Stage) -> str:
    """Create the agent and give it something to lose."""
    stage.create()
    expected = mark(stage.sandboxes.place(ID), "what it has")
    rules.guard(stage, expected)
    return expected


def killed_after(step: str, stage: Stage, command: Callable[[], object]) -> None:
    """Kill a command, each time a call later, until the receipt of a step is there."""
    number = 1
    while (begun := rules.pending(stage)) is None or step not in begun.done:
        with pytest.raises(Killed), stage.faults.kill(number):
            command()
        number += 1


def no_image(*_given: object) -> image.Image:
    raise NotReady("there is no image")


def test_a_move_that_was_refused_leaves_no_room_reserved_and_no_sizes_behind(stage: Stage) -> None:
    expected = has_something(stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "ensure_image", no_image)
        for command in (lambda: stage.resize(memory_mib=4096), stage.reset):
            assert isinstance(called(command), NotReady)
            assert rules.check(stage, expected) is None
    stage.resize(memory_mib=512)
    assert stage.record().sizes.memory_mib == 512


def test_a_move_that_ended_while_it_reserved_and_is_then_refused_leaves_no_room_reserved(
    stage: Stage,
) -> None:
    expected = has_something(stage)
    number = 1
    while stage.record().moving_to is None:  # its receipt is not written yet
        with pytest.raises(Killed), stage.faults.kill(number):
            stage.resize(memory_mib=4096)
        number += 1
    stage.sandboxes.meddled[ID, "archive"] = "print('{}')"
    assert isinstance(called(lambda: stage.resize(memory_mib=4096)), SandboxFailed)
    stage.sandboxes.meddled.clear()
    assert rules.check(stage, expected) is None
    stage.publish("0.2.0")
    stage.upgrade()
    assert stage.record().sizes.memory_mib == 256
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected


@pytest.mark.parametrize("wanted", ["up", "down"])
@pytest.mark.parametrize("how", ["missing", "broken"])
def test_an_agent_whose_sandbox_is_lost_comes_back_from_its_backup(
    stage: Stage, how: str, wanted: str
) -> None:
    expected = has_something(stage)
    stage.backup()
    if wanted == "down":
        stage.stop()
    if how == "missing":
        stage.sandboxes.lose(ID)
    else:
        stage.sandboxes.broken.add(ID)
    stage.sandboxes.turn = "fails"
    assert isinstance(called(stage.restore), MoveFailed)
    assert not rules.pending(stage)
    stage.sandboxes.turn = "answers"
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected
    assert rules.check(stage, expected) is None


def test_an_agent_whose_sandbox_is_lost_starts_anew(stage: Stage) -> None:
    stage.create()
    stage.sandboxes.lose(ID)
    stage.reset()
    assert rules.check(stage, "") is None


def test_no_backup_is_pruned_while_one_is_written_or_brought_back(stage: Stage) -> None:
    has_something(stage)
    stage.backup()
    oldest = vault.listed(stage, ID)[0].name
    stage.resize()
    stage.resize()
    tried: list[BaseException | None] = []
    stage.sandboxes.before_transfer = lambda _sandbox: tried.append(called(stage.prune))
    stage.sandboxes.turn = "fails"
    assert isinstance(called(lambda: stage.restore(oldest)), MoveFailed)
    assert [type(error) for error in tried] == [Locked, Locked]
    killed_after("plan", stage, lambda: stage.restore(oldest))
    assert isinstance(called(stage.prune), Unfinished)
    assert oldest in [one.name for one in vault.listed(stage, ID)]


def damage(stage: Stage, name: str) -> None:
    path = vault.place(stage, ID, name) / "files.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)


def test_an_archive_taken_anew_is_not_proved_by_what_was_there_before(stage: Stage) -> None:
    expected = has_something(stage)
    look = stage.sandboxes.before_remove

    def damaged(sandbox: str) -> None:
        look(sandbox)
        assert vault.listed(stage, ID)[-1].proved is None

    def answer(line: str) -> None:
        if line == "reading its archive once more":
            assert vault.listed(stage, ID)[-1].proved is not None
            damage(stage, vault.listed(stage, ID)[-1].name)
            stage.sandboxes.before_remove = damaged

    move.resize(
        stage, ID, Wanted(cpus=1, memory_mib=512, storage_mib=1024), finish="", over_budget=False, told=answer
    )
    assert rules.in_archives(stage, expected)
    assert rules.check(stage, expected) is None


def test_an_old_sandbox_stays_when_its_archive_is_damaged_in_the_last_moment(stage: Stage) -> None:
    expected = has_something(stage)

    def answer(line: str) -> None:
        if line == "removing the sandbox that it left":
            damage(stage, vault.listed(stage, ID)[-1].name)

    move.resize(
        stage, ID, Wanted(cpus=1, memory_mib=512, storage_mib=1024), finish="", over_budget=False, told=answer
    )
    assert rules.left_alone(stage) == {ID}
    assert marks(stage.sandboxes.place(ID)) == expected
    assert rules.check(stage, expected) is None


def test_files_of_another_backup_are_not_taken_for_the_archive_that_the_receipt_tells_of(
    stage: Stage,
) -> None:
    stage.create()
    mark(stage.sandboxes.place(ID), "what it had")
    stage.backup()
    (older,) = vault.listed(stage, ID)
    expected = mark(stage.sandboxes.place(ID), "what it has")
    rules.guard(stage, expected)

    def answer(line: str) -> None:
        if line == "reading its archive once more":
            folder = vault.place(stage, ID, vault.listed(stage, ID)[-1].name)
            for name in ("archive.json", "files.tar"):
                shutil.copy(vault.place(stage, ID, older.name) / name, folder / name)

    move.resize(
        stage, ID, Wanted(cpus=1, memory_mib=512, storage_mib=1024), finish="", over_budget=False, told=answer
    )
    assert rules.in_archives(stage, expected)


@pytest.mark.parametrize("name", ["resize", "restore", "upgrade"])
def test_a_new_sandbox_that_is_lost_before_the_old_one_went_ends_the_move_and_keeps_the_old_one(
    stage: Stage, name: str
) -> None:
    expected = has_something(stage)
    stage.backup()
    stage.publish("0.2.0")
    killed_after("switch", stage, getattr(stage, name))
    stage.sandboxes.lose(f"{ID}--1")
    error = called(getattr(stage, name))
    assert error is None or rules.pending(stage) is None
    assert rules.left_alone(stage) == {ID}
    assert marks(stage.sandboxes.place(ID)) == expected
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected


def test_a_fault_of_troupes_own_sends_the_agent_back_too(stage: Stage) -> None:
    expected = has_something(stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "judged", lambda *_given: 1 / 0)
        error = called(stage.resize)
    assert isinstance(error, MoveFailed)
    assert "ZeroDivisionError" in str(error)
    assert rules.check(stage, expected) is None


def test_an_agent_that_can_not_be_started_again_keeps_no_restore_out(stage: Stage) -> None:
    expected = has_something(stage)

    def answer(line: str) -> None:
        if line == "starting the gateway again":
            stage.sandboxes.running.discard(ID)
            stage.sandboxes.stuck.add(ID)

    def again() -> object:
        return backup.backup(stage, ID, over_budget=False, told=answer)

    assert isinstance(called(again), SandboxFailed)
    assert rules.pending(stage) is not None
    error = called(again)
    assert "could not be started again" in str(error)
    assert rules.pending(stage) is None
    stage.restore(vault.listed(stage, ID)[-1].name)
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected
    assert rules.check(stage, expected) is None


def test_a_drill_whose_backup_is_gone_ends(stage: Stage) -> None:
    expected = has_something(stage)
    stage.backup()
    killed_after("look", stage, stage.drill)
    shutil.rmtree(vault.place(stage, ID, vault.listed(stage, ID)[-1].name))
    assert isinstance(called(stage.drill), BackupFailed)
    assert rules.check(stage, expected) is None


def test_a_backup_that_does_not_read_hides_no_other(stage: Stage) -> None:
    expected = has_something(stage)
    stage.backup()
    stage.resize()
    good, bad = (vault.place(stage, ID, one.name) for one in vault.listed(stage, ID))
    (good / "proof.json").write_text("{}")
    (bad / "archive.json").unlink()
    (bad / "archive.json").symlink_to("elsewhere")
    assert [(one.name, one.proved) for one in vault.listed(stage, ID)] == [(good.name, None)]
    stage.restore(good.name)
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected


def test_a_move_ends_though_its_archive_was_damaged_after_the_old_sandbox_went(stage: Stage) -> None:
    expected = has_something(stage)
    with pytest.raises(Killed), stage.faults.kill(within=f"remove {ID}, half"):
        stage.resize()
    assert not (stage.sandboxes.place(ID) / "state").exists()
    damage(stage, vault.listed(stage, ID)[-1].name)
    stage.resize()
    assert rules.check(stage, expected) is None


def test_a_delete_takes_away_what_a_move_has_half_made(stage: Stage) -> None:
    has_something(stage)
    with pytest.raises(Killed), stage.faults.kill(within=f"create {ID}--1, half"):
        stage.resize()
    assert stage.sandboxes.all() == (ID, f"{ID}--1")
    assert [info.id for info in stage.sandboxes.list().sandboxes] == [ID]
    stage.delete()
    assert rules.check(stage, "") is None
    assert stage.sandboxes.all() == ()


@pytest.mark.parametrize("second", ["resize", "restore", "upgrade"])
def test_a_move_carries_what_the_agent_has_when_its_turn_comes(
    stage: Stage, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = has_something(stage)
    stage.backup()
    stage.publish("0.2.0")
    agent = locks.agent

    @contextmanager
    def just_before(paths: Paths, agent_id: str) -> Iterator[None]:
        monkeypatch.setattr(locks, "agent", agent)
        stage.publish("0.1.0")
        stage.resize(memory_mib=2048)  # another command's, which ends as this one begins
        stage.upgrade()
        stage.publish("0.2.0")
        with agent(paths, agent_id):
            yield

    monkeypatch.setattr(locks, "agent", just_before)
    {"resize": lambda: stage.resize(memory_mib=4096), "restore": stage.restore, "upgrade": stage.upgrade}[
        second
    ]()
    record = stage.record()
    assert record.sizes.memory_mib == (4096 if second == "resize" else 2048)
    assert rules.check(stage, expected) is None
    assert record.move == 2


@pytest.mark.parametrize("how", ["missing", "broken"])
def test_starting_or_stopping_an_agent_whose_sandbox_is_lost_stands_in_no_ones_way(
    stage: Stage, how: str
) -> None:
    expected = has_something(stage)
    stage.backup()
    if how == "missing":
        stage.sandboxes.lose(ID)
    else:
        stage.sandboxes.broken.add(ID)
    assert isinstance(called(stage.start), SandboxGone)
    assert rules.pending(stage) is None
    stage.stop()
    assert rules.pending(stage) is None
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected
    assert rules.check(stage, expected) is None


def test_a_start_that_was_cut_and_then_fails_stands_in_no_ones_way(stage: Stage) -> None:
    expected = has_something(stage)
    stage.backup()
    stage.stop()
    killed_after("reserve", stage, stage.start)
    stage.sandboxes.lose(ID)
    assert isinstance(called(stage.restore), Unfinished)
    assert isinstance(called(stage.start), SandboxGone)
    assert rules.pending(stage) is None
    stage.restore()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected
    assert rules.check(stage, expected) is None


def test_on_a_full_disk_a_gateway_that_can_not_be_stopped_keeps_no_sandbox_up(stage: Stage) -> None:
    stage.create()

    def stuck(_names: object) -> tuple[str, ...]:
        raise NotReady("it could not be stopped")

    with pytest.MonkeyPatch.context() as patch, stage.faults.fail(1, errno.ENOSPC, and_all_after=True):
        patch.setattr(stage.keeper, "stop", stuck)
        error = called(stage.stop)
    assert isinstance(error, NotReady)
    assert error.what == "it could not be stopped"
    assert not stage.sandboxes.running


def test_on_a_full_disk_what_is_to_be_started_again_at_once_is_not_stopped(stage: Stage) -> None:
    stage.create()
    with stage.faults.fail(1, errno.ENOSPC, and_all_after=True):
        error = called(lambda: power.stop(stage, ID, told=print, for_good=False))
    assert isinstance(error, DiskFull)
    assert stage.sandboxes.running == {ID}
    assert rules.check(stage, "") is None


def test_nothing_of_the_machine_has_the_place_or_the_name_of_an_agents_own(stage: Stage) -> None:
    stage.create()
    with locks.machine(stage.paths), locks.named(stage.paths, "supervisor", wait_s=1):
        places = {stage.paths.locks / "x"}
        for name, one in vars(Paths).items():
            if inspect.isfunction(one) and [*inspect.signature(one).parameters] == ["self", "agent_id"]:
                places.add(getattr(stage.paths, name)("x"))
        folders = {place.parent for place in places if place.name == "x"}
        assert len(folders) >= 9
        there = {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}
    assert {ID, "broker", "rehearsal", ".machine"} <= there
    assert [name for name in there if could_be_an_agents(name)] == [ID]
    own = gateway_name(ID)
    assert {"broker", "rehearsal", own} == set(stage.keeper.up)
    assert [name for name in stage.keeper.up if name.startswith(own.removesuffix(ID))] == [own]


def could_be_an_agents(name: str) -> bool:
    try:
        return agent_id(name) == name
    except UsageError:
        return False


def test_an_upgrade_that_went_back_keeps_no_edits_for_it_replaced_none(stage: Stage) -> None:
    stage.create()
    seed = "state/hermes/skills/one.md"
    (stage.sandboxes.place(ID) / seed).write_text("the agent's own")
    stage.publish("0.2.0")
    stage.sandboxes.turn = "fails"
    assert isinstance(called(stage.upgrade), MoveFailed)
    assert not [path for path in stage.paths.live_apply(ID).rglob("*") if path.is_file()]
    assert (stage.sandboxes.place(ID) / seed).read_text() == "the agent's own"
    stage.sandboxes.turn = "answers"
    stage.upgrade()
    (kept,) = [path for path in stage.paths.live_apply(ID).rglob("*") if path.is_file()]
    assert kept.read_text() == "the agent's own"


def test_what_stands_in_a_seeds_place_and_is_too_large_or_no_file_is_set_aside_and_listed(
    stage: Stage,
) -> None:
    stage.create()
    home = stage.sandboxes.place(ID) / "state/hermes/skills"
    (home / "one.md").write_bytes(bytes((4 << 20) + 1))
    (home / "even.md").unlink(missing_ok=True)
    (home / "even.md").mkdir()
    stage.publish("0.2.0")
    done = stage.upgrade()
    assert isinstance(done, upgrade.Upgraded)
    assert done.edits == tuple(
        f"skills/{name}.md (it is skills/{name}.md.before now)" for name in ("even", "one")
    )
    there = stage.sandboxes.place(stage.record().sandbox) / "state/hermes/skills"
    assert (there / "one.md").read_text() == "one of 0.2.0\n"
    assert (there / "one.md.before").stat().st_size == (4 << 20) + 1
    assert (there / "even.md.before").is_dir()


def test_what_a_killed_delete_left_keeps_no_later_agent_from_being_deleted(stage: Stage) -> None:
    stage.create()
    number = 1
    while stage.paths.receipts(ID).exists():
        try:
            with stage.faults.kill(number):
                stage.delete()
        except Killed:
            number += 1
    assert any(stage.paths.receipts(ID).parent.iterdir())
    stage.create()
    stage.delete()
    assert not any(stage.paths.receipts(ID).parent.iterdir())


KINDS = ("backups", "live_apply", "logs", "agent", "receipts", "keys", "egress", "sandbox")


@pytest.mark.parametrize(
    ("kind", "below"),
    [*((kind, below) for kind in KINDS for below in ("..", "")), ("backups", "one"), ("live_apply", "one")],
)
def test_a_delete_says_that_a_folder_is_a_link_before_it_removes_anything(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str, below: str
) -> None:
    monkeypatch.setattr(Paths, "from_env", lambda: stage.paths)
    stage.create()
    place = getattr(stage.paths, kind)(ID)
    folder: Path = place.parent if below == ".." else place / below
    folder.mkdir(parents=True, exist_ok=True)
    folder.rename(stage.root / "elsewhere")
    folder.symlink_to(stage.root / "elsewhere")
    with pytest.raises(FolderUnusable, match="is a link, and what it leads to would not be deleted"):
        stage.delete()
    assert stage.record().id == ID
    assert stage.sandboxes.place(stage.record().sandbox).is_dir()
    folder.unlink()
    (stage.root / "elsewhere").rename(folder)
    stage.delete()
    assert not stage.paths.agent(ID).exists()


def test_a_delete_that_is_finished_names_the_keys_wherever_it_was_killed(stage: Stage) -> None:
    number, revoke = 0, None
    while revoke is None:
        number += 1
        stage.create()
        kept = Keystore(stage.paths, ID)
        kept.create(Tier.FILE)
        kept.put("desk", Secret(b"of an agent that goes"))
        try:
            with stage.faults.kill(number):
                revoke = stage.delete()
        except Killed:
            if stage.paths.receipts(ID).exists():
                assert stage.delete() == ("desk",), f"killed at {stage.faults.what}"
    assert revoke == ("desk",)
    assert number > 10
    stage.create()
    assert stage.delete() == ()


@pytest.mark.parametrize("name", ["reset", "resize", "upgrade", "backup", "stop", "start", "prune"])
def test_a_create_that_got_nowhere_is_named_to_whoever_asks_for_more(stage: Stage, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins, "pin", no_image)
        assert isinstance(called(stage.create), NotReady)
    error = called(getattr(stage, name))
    assert isinstance(error, Unfinished)
    assert "troupe create" in error.hint


def test_a_create_that_the_machine_can_not_hold_was_never_begun(stage: Stage) -> None:
    wish = create.Wish(
        id=ID, name=NAME, kit=local.find("toy"), rehearsal=True, over_budget=True,
        wanted=Wanted(cpus=1, memory_mib=1 << 30, storage_mib=1024),
    )  # fmt: skip
    assert isinstance(called(lambda: create.create(stage, wish, finish="", told=print)), OverBudget)
    assert rules.pending(stage) is None
    assert records.find(stage.paths, ID) is None
    stage.create()
    assert stage.record().sizes.memory_mib == 256
