"""When a process started."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from troupe_tasks.host.processes import started_at


def test_this_process_started_a_while_ago_and_not_before_the_machine() -> None:
    found = started_at(os.getpid())
    assert found is not None
    assert datetime.now(UTC) - timedelta(hours=12) < found <= datetime.now(UTC) + timedelta(seconds=2)


def test_a_process_that_is_gone_has_no_start() -> None:
    assert started_at(2**22 + 1) is None


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(["S", *["0"] * 18, "250", "0"])
    (tmp_path / "7" / "stat").write_text(f"7 (a ) (b) {fields}", encoding="ascii")
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1000\n", encoding="ascii")
    assert started_at(7, proc=tmp_path) == datetime.fromtimestamp(1000 + 250 / os.sysconf("SC_CLK_TCK"), UTC)
