"""`troupe version` names the programs of every driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.sbx import calls

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("does", "shown"),
    [
        ('echo \'{"client": {"version": "v0.48.1"}, "server": {"state": "unavailable"}}\'', "v0.48.1"),
        ("echo 'no sign-in' >&2; exit 1", "not known: "),
        ('printf \'{"client": {"version": "v0.48\\\\u001b[1m"}}\'', "v0.48\\x1b[1m"),
    ],
)
def test_what_sbx_says_of_itself_is_shown(tmp_path: Path, does: str, shown: str) -> None:
    (tmp_path / "sbx").write_text(f'#!/bin/sh\n[ "$*" = "version --json" ] || exit 9\n{does}\n')
    (tmp_path / "sbx").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "troupe_tasks", "version", "--json"], cwd=ROOT, capture_output=True, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["sbx"].startswith(shown)
    assert {"troupe", "commit", "python", "gvisor", "bubblewrap"} < set(found)


def test_a_machine_without_sbx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "find", lambda: None)
    assert drivers.sbx_version() == "not installed"
