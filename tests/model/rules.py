"""What must hold of the stage whatever happened: the last good copy of what the agent has is never gone.

It is looked for by hashes alone: in the sandbox that the record names, in any of the agent's sandboxes while an
operation is unfinished, or in an archive whose files are what archive.json says and whose restore gives it back.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.model.sandboxes import GUEST, fork_and_feed
from tests.model.stage import ID, Stage, marks
from troupe_tasks import record as records
from troupe_tasks.archives import disk
from troupe_tasks.archives.model import FILES
from troupe_tasks.errors import BackupDamaged
from troupe_tasks.journal import ABANDONED, END, Journal, Open
from troupe_tasks.operations import vault
from troupe_tasks.operations.house import gateway_name
from troupe_tasks.record import Record

_RESTORED: dict[str, str] = {}


def pending(stage: Stage) -> Open | None:
    """Return the operation that was interrupted; raises Tampered unless the chain holds."""
    return Journal(stage.paths, ID).unfinished()


def switched(stage: Stage) -> bool:
    """Tell whether the last operation has recorded that the agent lives in its new sandbox."""
    steps = [receipt for receipt in Journal(stage.paths, ID).receipts if receipt.step in {"begin", "switch"}]
    return bool(steps) and steps[-1].decided == {"moved": True}


def in_sandboxes(stage: Stage, expected: str) -> list[str]:
    """Return the sandboxes that hold it."""
    return [found for found in stage.sandboxes.all() if marks(stage.sandboxes.place(found)) == expected]


def in_archives(stage: Stage, expected: str) -> list[str]:
    """Return the backups that are whole and whose restore gives it back."""
    return [one.name for one in vault.listed(stage, ID) if restored(stage, one.name) == expected]


def restored(stage: Stage, name: str) -> str:
    """Return the digest of what a backup's restore gives; nothing where the backup is damaged."""
    folder = vault.place(stage, ID, name)
    try:
        archive = disk.load(folder)
        disk.rehash(folder, archive)
    except BackupDamaged:
        return ""
    part = archive.part(FILES)
    assert part is not None
    if part.sha256 not in _RESTORED:
        with tempfile.TemporaryDirectory(dir=stage.root) as place:
            for top in ("state", "workspace"):
                (Path(place) / top).mkdir()
            data = (folder / FILES).read_bytes()
            words = [str(GUEST / "restore.py"), f"{place}/state", f"{place}/workspace"]
            assert fork_and_feed("restore", words, data, stage.faults) == 0
            _RESTORED[part.sha256] = marks(Path(place))
    return _RESTORED[part.sha256]


def check(stage: Stage, expected: str) -> Open | None:
    """Assert all rules, and return the operation that is unfinished; with nothing expected only that all is whole."""
    opened = pending(stage)
    record = records.find(stage.paths, ID)
    for path in stage.paths.state.rglob("*.json"):
        if not path.name.startswith(".") and "receipts" not in path.parts:
            json.loads(path.read_bytes())
    if opened is None:
        _at_rest(stage, record)
    if expected:
        _kept(stage, record, expected, opened)
    return opened


def left_alone(stage: Stage) -> set[str]:
    """Return the sandboxes that a move has left where they are, and said so."""
    steps = [receipt for receipt in Journal(stage.paths, ID).receipts if receipt.step == "leave"]
    return {str(receipt.decided["left"]) for receipt in steps if "left" in receipt.decided}


def _kept(stage: Stage, record: Record | None, expected: str, opened: Open | None) -> None:
    there = {record.sandbox, *left_alone(stage)} if record is not None else set()
    if there & set(in_sandboxes(stage, expected)):
        return
    if opened is not None and in_sandboxes(stage, expected):
        return
    assert in_archives(stage, expected), f"it is gone: {stage.sandboxes.all()}, {opened or 'at rest'}"


def guard(stage: Stage, expected: str) -> None:
    """Have the driver refuse to remove a sandbox that holds the only copy; a reset may, once it has switched."""

    def look(sandbox: str) -> None:
        opened = pending(stage)
        given_up = opened is not None and opened.operation == "reset" and "switch" in opened.done
        if in_sandboxes(stage, expected) == [sandbox] and not given_up:
            assert in_archives(stage, expected), f"{sandbox} is removed with the only copy"

    def still(sandbox: str) -> None:
        gateways = [name for name, up in stage.keeper.up.items() if name == gateway_name(ID) and up]
        assert not gateways or records.load(stage.paths, ID).sandbox != sandbox, "the gateway runs meanwhile"

    stage.sandboxes.before_remove, stage.sandboxes.before_transfer = look, still


def _at_rest(stage: Stage, record: Record | None) -> None:
    """Assert that nothing but the agent's own sandbox is there, and that it runs as it is wanted."""
    assert set(stage.sandboxes.all()) <= ({record.sandbox, *left_alone(stage)} if record else set())
    if record is None or not stage.sandboxes.all():  # lost by a hand that is not ours: what is kept tells
        return
    assert record.moving_to is None
    is_up = stage.keeper.up.get(gateway_name(ID), False)
    if is_up or not _failed_half_way(stage):
        assert is_up == (record.wanted == "up"), f"wanted {record.wanted}, gateway {is_up}"
        assert (record.sandbox in stage.sandboxes.running) == is_up


def _failed_half_way(stage: Stage) -> bool:
    """Tell whether a start or stop failed, and so has left the gateway down, and nothing has put it right since."""
    settled = [
        one.step
        for one in Journal(stage.paths, ID).receipts
        if (one.step == ABANDONED and one.operation in {"start", "stop"})
        or (one.step == END and one.operation not in {"backup", "drill"})
    ]
    return settled[-1:] == [ABANDONED]
