"""What a reset looks at before it does anything: the agent's own driver; and that a check leaves all as it was."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.model.sandboxes import Folders
from tests.model.stage import ID, Stage
from troupe_tasks import record as records
from troupe_tasks.doctor.run import CHECKS, run_doctor
from troupe_tasks.errors import NotReady
from troupe_tasks.operations import readiness, reset
from troupe_tasks.operations.readiness import refuse_unready
from troupe_tasks.sandbox.sbx import calls


@dataclass
class Noted:
    """A driver, and what was asked of it."""

    inner: Folders
    asked: set[str] = field(default_factory=set)

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self.inner, name)


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every path below a folder with its mode, when it was changed, and what it holds."""
    found = {}
    for path in (root, *root.rglob("*")):
        about = path.lstat()
        held = os.readlink(path).encode() if path.is_symlink() else b""
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else held
        found[str(path)] = (about.st_mode, about.st_mtime_ns, held)
    return found


def unready(patch: pytest.MonkeyPatch) -> None:
    """Have the real doctor look at sbx's unit alone, on a machine without sbx."""
    unit_alone = tuple(entry for entry in CHECKS if entry.requirement == "sbx daemon unit")
    patch.setattr(calls, "find", lambda: None)
    patch.setattr(
        readiness, "run_doctor", lambda *facts, **how: run_doctor(*facts, **{**how, "checks": unit_alone})
    )
    patch.setattr(readiness, "refuse_unready", refuse_unready)


def test_a_check_changes_nothing_and_runs_nothing_in_the_sandbox(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create()
    before = tree(stage.root)
    steps: list[str] = []
    monkeypatch.setattr(stage.faults, "step", steps.append)
    noted = Noted(stage.sandboxes)
    assert len(reset.check(replace(stage, sandboxes=cast("Folders", noted)), ID)) == len(reset.STEPS)
    assert tree(stage.root) == before
    assert steps == []
    assert noted.asked <= {"name", "list", "disk_used_mib"}


@pytest.mark.parametrize("command", [reset.check, partial(reset.reset, over_budget=False, told=print)])
def test_an_agent_is_refused_for_what_its_own_driver_lacks_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    stage.create()
    unready(monkeypatch)
    command(replace(stage, wanted="sbx"), ID)  # a capsule's, on a machine whose new agents get sbx
    records.save(stage.paths, stage.record().model_copy(update={"driver": "sbx"}))
    with pytest.raises(NotReady, match="sbx daemon unit"):
        command(stage, ID)
