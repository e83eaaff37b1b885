"""Rotation of the logs that systemd writes."""

from __future__ import annotations

import os
from pathlib import Path

from troupe_tasks.services import rotate


def test_a_log_under_the_limit_is_left(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_bytes(b"x" * 10)
    assert not rotate.rotate(log, limit_bytes=10)
    assert [path.name for path in tmp_path.glob("gateway*")] == ["gateway.log"]


def test_a_writer_that_appends_goes_on_in_the_emptied_log(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * 20 + b"b" * 10)
        assert rotate.rotate(log, limit_bytes=10)
        writer.write(b"new")
    assert log.read_bytes() == b"new"
    assert (tmp_path / "gateway.log.1").read_bytes() == b"b" * 10
    assert (tmp_path / "gateway.log.1").stat().st_mode & 0o077 == 0


def test_three_older_ones_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    for letter in b"abcde":
        log.write_bytes(bytes([letter]) * 20)
        assert rotate.rotate(log, limit_bytes=10)
    found = {path.name: path.read_bytes()[:1] for path in tmp_path.glob("gateway*")}
    assert found == {"gateway.log": b"", **{f"gateway.log.{n}": bytes([102 - n]) for n in (1, 2, 3)}}


def test_only_the_services_own_logs_are_touched_and_a_link_is_not_followed(tmp_path: Path) -> None:
    big = b"x" * 6_000_000
    for name in ("jane/gateway.log", "broker/broker.log", "jane/egress.jsonl", "elsewhere.log"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(big)
    (tmp_path / "joe").mkdir()
    os.symlink(tmp_path / "elsewhere.log", tmp_path / "joe" / "gateway.log")
    assert rotate.main(str(tmp_path)) == 1
    assert (tmp_path / "jane/gateway.log").stat().st_size == 0
    assert (tmp_path / "broker/broker.log").stat().st_size == 0
    assert (tmp_path / "jane/egress.jsonl").read_bytes() == big
    assert (tmp_path / "elsewhere.log").read_bytes() == big
