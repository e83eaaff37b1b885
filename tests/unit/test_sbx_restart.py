"""A hint names the restart that keeps the daemon under its unit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from troupe_tasks.sandbox.sbx import restart
from troupe_tasks.services import daemon


def test_the_unit_is_restarted_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert restart.command(root=tmp_path) == "`sbx daemon restart`"
    assert daemon.FOLDER / daemon.UNIT == restart.UNIT_FILE
    unit = tmp_path / restart.UNIT_FILE.relative_to("/")
    unit.parent.mkdir(parents=True)
    unit.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert restart.command(root=tmp_path) == "`systemctl restart sbx-daemon.service`"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert restart.command(root=tmp_path) == "`sudo systemctl restart sbx-daemon.service`"
