"""The audit log is private, bounded, and safe to show."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from troupe_tasks.egress.audit import KEPT, AuditLog, Entry


def test_lines_are_private_escaped_and_capped(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "jane")
    log.write(Entry(method="\x1b[2J" * 50, host="\u202e" + "h" * 5000), ms=1.234)
    log.close()
    (line,) = log.path.read_text().splitlines()
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert len(line) < 1000
    assert "\\u001b" not in line
    assert json.loads(line)["ms"] == 1.2


def test_a_flood_is_counted_and_the_count_is_told(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "jane")
    for _ in range(5000):
        log.write(Entry(host="a.example.org"), ms=0)
    lines = log.path.read_text().splitlines()
    assert len(lines) < 1500
    log._budget = 10
    log.write(Entry(host="a.example.org"), ms=0)
    log.close()
    told = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert len(told) + sum(line.get("lines_left_out_before", 0) for line in told) == 5001


def test_the_file_is_turned_over_and_old_ones_are_dropped(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "jane", turnover_bytes=1000)
    for _ in range(100):
        log.write(Entry(host="a.example.org"), ms=0)
    log.close()
    files = sorted(path.name for path in log.path.parent.iterdir())
    assert files == ["egress.jsonl", *(f"egress.jsonl.{number}" for number in range(1, KEPT + 1))]
    assert all(path.stat().st_size <= 1000 for path in log.path.parent.iterdir())


def test_a_new_broker_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        log = AuditLog(tmp_path / "jane")
        log.write(Entry(host="a.example.org"), ms=0)
        log.close()
    assert len((tmp_path / "jane" / "egress.jsonl").read_text().splitlines()) == 2
