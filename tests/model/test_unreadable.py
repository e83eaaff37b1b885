"""A record that does not read stops its own agent's commands, but for delete, and no other's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from invoke import Context

from tests.model import rules
from tests.model.stage import ID, NAME, Stage, mark, marks
from troupe_tasks import record as records
from troupe_tasks.errors import NotConfirmed, NotFound, StateUnreadable
from troupe_tasks.kits import local
from troupe_tasks.namespace import namespace
from troupe_tasks.operations import create, house, inventory, room
from troupe_tasks.operations.delete import delete
from troupe_tasks.sizes import Wanted

JANE = "jane"
Harm = Callable[[Path], object]


def _newer(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"format": 1', b'"format": 2, "more": []'))


def _linked(file: Path) -> None:
    file.rename(file.with_name("elsewhere.json"))
    file.symlink_to("elsewhere.json")


def _lost(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def _closed(file: Path) -> None:
    """Take the file from its reader: root, whom no mode keeps out, has to lose it to somebody else."""
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
    file.chmod(0)


def _anothers(file: Path) -> None:
    file.write_text(file.read_text().replace(f'"id": "{file.parent.name}"', '"id": "\\u001b[31m"'))


HARMS: dict[str, Harm] = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(b"{"),
    "other JSON": lambda file: file.write_bytes(b'[{"id": "jane"}]'),
    "another driver's": lambda file: file.write_bytes(file.read_bytes().replace(b'"capsule"', b'"vm"')),
    "newer": _newer,
    "another's": _anothers,
    "linked": _linked,
    "lost": _lost,
    "closed": _closed,
}


@pytest.fixture(params=HARMS)
def harm(request: pytest.FixtureRequest) -> Harm:
    return HARMS[request.param]


@pytest.fixture(autouse=True)
def commands(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the commands work on the stage."""
    monkeypatch.setattr(house, "House", lambda _paths: stage)


def run(name: str, **flags: object) -> None:
    namespace[name].body.__wrapped__(Context(), **flags)


def create_jane(stage: Stage) -> None:
    wish = create.Wish(
        id=JANE, name="Jane", kit=local.find("toy"), rehearsal=True,
        wanted=Wanted(cpus=1, memory_mib=128, storage_mib=512),
    )  # fmt: skip
    create.create(stage, wish, finish="troupe create", told=stage.said.append)


def test_it_stops_no_other_agents_commands(stage: Stage, harm: Harm) -> None:
    create_jane(stage)
    stage.create()
    expected = mark(stage.sandboxes.place(ID), "what it has")
    harm(stage.paths.record(JANE))
    stage.stop()
    stage.start()
    stage.backup()
    stage.drill()
    stage.resize()
    stage.publish("0.2.0")
    stage.upgrade()
    assert any("the image of toy 0.1.0 is left" in said for said in stage.said), "it may be what jane needs"
    stage.restore()
    assert stage.prune()
    assert marks(stage.sandboxes.place(stage.record().sandbox)) == expected
    stage.reset()
    healthy, ill = inventory.agents(stage)
    assert (healthy.id, healthy.state) == (ID, "running")
    assert (ill.id, ill.state, ill.driver) == (JANE, "unreadable", "capsule")
    assert ill.sizes is not None
    assert ill.sizes.memory_mib == 128
    assert str(stage.paths.record(JANE)) in ill.why
    assert inventory.full(stage, ID).agent == healthy
    stage.delete()
    assert stage.sandboxes.all() == (JANE,)
    assert stage.keeper.up["gateway-jane"], "the services were ended, and an agent is there"


def test_its_sandbox_counts_as_its_driver_tells(stage: Stage) -> None:
    create_jane(stage)
    stage.create()
    (before,) = room.others(stage, ID)
    stage.paths.record(JANE).write_bytes(b"{")
    assert room.others(stage, ID) == [replace(before, name=JANE)]
    stage.sandboxes.running.clear()
    (other,) = room.others(stage, ID)
    assert not other.up
    assert other.disk_growth_mib == before.disk_growth_mib


def test_its_own_commands_say_what_is_wrong_and_what_helps(stage: Stage, harm: Harm) -> None:
    stage.create()
    stage.backup()
    harm(stage.paths.record(ID))
    for command in (
        stage.stop, stage.start, stage.backup, stage.drill, stage.resize, stage.upgrade, stage.restore, stage.reset,
        stage.prune, stage.create, lambda: inventory.full(stage, ID), lambda: run("start", agents=ID),
        lambda: run("status", agent=ID), lambda: run("secret.list", agent=ID),
    ):  # fmt: skip
        with pytest.raises(StateUnreadable, match=str(stage.paths.record(ID))) as caught:
            command()
        assert f"`troupe delete {ID}`" in caught.value.hint or "`troupe update`" in caught.value.hint
        assert rules.pending(stage) is None


def test_it_can_be_deleted_with_all_that_it_had(stage: Stage, harm: Harm) -> None:
    stage.create()
    stage.resize()
    stage.backup()
    stage.sandboxes.place(f"{ID}--2").mkdir()  # what a move had begun to make; no listing has it
    harm(stage.paths.record(ID))
    with pytest.raises(NotConfirmed, match="nothing was deleted") as caught:
        run("delete", agent=ID, yes_i_mean=NAME)
    assert "the ID that was given" in caught.value.cause
    run("delete", agent=ID, yes_i_mean=ID)
    assert stage.sandboxes.all() == ()
    assert not stage.keeper.up
    for place in (stage.paths.agent(ID), stage.paths.receipts(ID), stage.paths.backups(ID)):
        assert not os.path.lexists(place)
    assert inventory.agents(stage) == []
    with pytest.raises(NotFound):
        delete(stage, ID, told=stage.said.append)
    stage.create()


def test_a_list_shows_it_and_succeeds(stage: Stage, harm: Harm, capsys: pytest.CaptureFixture[str]) -> None:
    create_jane(stage)
    stage.create()
    harm(stage.paths.record(JANE))
    capsys.readouterr()
    run("list")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    (row,) = [text.split() for text in said.splitlines() if text.startswith("jane ")]
    assert row[:3] == [JANE, "?", "unreadable"]
    assert (
        f"jane: {stage.paths.record(JANE)}" in said or f"jane: cannot read {stage.paths.record(JANE)}" in said
    )
    run("list", json=True)
    told = {one["id"]: one for one in json.loads(capsys.readouterr().out)}
    assert told[ID]["state"] == "running"
    assert (told[JANE]["state"], told[JANE]["name"]) == ("unreadable", "")
    assert str(stage.paths.record(JANE)) in told[JANE]["why"]


def test_all_of_them_started_are_all_but_that_one(
    stage: Stage, harm: Harm, capsys: pytest.CaptureFixture[str]
) -> None:
    create_jane(stage)
    stage.create()
    harm(stage.paths.record(JANE))
    for command, state in (("stop", "stopped"), ("start", "running"), ("restart", "running")):
        capsys.readouterr()
        with pytest.raises(StateUnreadable, match="1 of 2 failed: jane"):
            run(command, all=True, json=True)
        answer = {one["agent"]: one for one in json.loads(capsys.readouterr().out)}
        assert {agent: one["done"] for agent, one in answer.items()} == {JANE: False, ID: True}
        assert str(stage.paths.record(JANE)) in answer[JANE]["why"]
        assert inventory.agents(stage)[0].state == state
    assert records.load(stage.paths, ID).wanted == "up"
