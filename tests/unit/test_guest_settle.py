"""guest/settle.py, run as the sandbox runs it: by path, isolated, over a file that the agent may have changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SETTLE = Path(__file__).parents[2] / "guest" / "settle.py"


def settle(path: Path, changes: dict[str, str | None]) -> str:
    words = [sys.executable, "-I", "-S", str(SETTLE), str(path)]
    subprocess.run(words, input=json.dumps(changes).encode(), check=True, timeout=20)
    return path.read_text(encoding="utf-8", errors="surrogateescape")


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("", {"A": "1"}, "A=1\n"),
        ("A=0\nB=2\n", {"A": "1"}, "A=1\nB=2\n"),
        ("# mine\nB=2", {"A": "1"}, "# mine\nB=2\nA=1\n"),
        ("A=0\nB=2\nA=9\n", {"A": "1"}, "A=1\nB=2\n"),
        ("A=0\nB=2\n", {"A": None}, "B=2\n"),
        ("B=2\n", {"A": None}, "B=2\n"),
        ("A =0\n", {"A": "1"}, "A=1\n"),
        ("AA=0\n", {"A": "1"}, "AA=0\nA=1\n"),
    ],
)
def test_lines_of_other_names_stay(
    tmp_path: Path, before: str, changes: dict[str, str | None], after: str
) -> None:
    path = tmp_path / ".env"
    path.write_text(before, encoding="utf-8")
    assert settle(path, changes) == after
    assert settle(path, changes) == after
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_there_or_not_text_is_no_trouble(tmp_path: Path) -> None:
    assert settle(tmp_path / "new", {"A": "1"}) == "A=1\n"
    path = tmp_path / ".env"
    path.write_bytes(b"\xff\xfe\nB=2\n")
    settle(path, {"A": "1"})
    assert path.read_bytes() == b"\xff\xfe\nB=2\nA=1\n"


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept", encoding="utf-8")
    (tmp_path / ".env.new").symlink_to(other)
    words = [sys.executable, "-I", "-S", str(SETTLE), str(tmp_path / ".env")]
    done = subprocess.run(words, input=b'{"A": "1"}', check=False, timeout=20, capture_output=True)
    assert done.returncode != 0
    assert other.read_text(encoding="utf-8") == "kept"
