"""When a process started, and what memory a program holds."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from troupe_tasks.host.processes import resident_mib, started_at


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


def test_the_memory_of_a_program_is_found_by_its_command_line() -> None:
    work = "held = b'x' * (64 << 20); print(flush=True); input()"
    assert resident_mib("a-daemon", "-c", work) == 0
    with subprocess.Popen(
        ["/opt/bin/a-daemon", "-c", work, "more"], executable=sys.executable, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        running.stdout.readline()
        assert 64 <= resident_mib("a-daemon", "-c", work) < 256
        assert resident_mib("daemon", "-c", work) == 0
        assert resident_mib("a-daemon", "-c", "other work") == 0
        running.communicate(b"\n")
    assert resident_mib("a-daemon", "-c", work) == 0


def test_every_process_of_a_program_counts_and_what_does_not_read_does_not(tmp_path: Path) -> None:
    status = {
        "1": "Name:\tsbx\nVmRSS:\t    1500 kB\n",
        "2": "VmRSS:\t    600 kB\n",
        "3": "Name:\tsbx\n",
        "4": "VmRSS:\t x kB\n",
    }
    for pid, text in status.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(b"/usr/bin/sbx\0daemon\0start\0")
        (tmp_path / pid / "status").write_text(text, encoding="utf-8")
    (tmp_path / "5").mkdir()
    (tmp_path / "self").mkdir()
    assert resident_mib("sbx", "daemon", "start", proc=tmp_path) == 3
