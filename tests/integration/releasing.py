"""Releases of the code under test, built by the session that people build them with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SKIPPED = shutil.ignore_patterns(".*", "__pycache__", "dist", "build")
_GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
_WHEN = "2026-01-02T03:04:05Z"


def clone(folder: Path, *, version: str = "") -> Path:
    """Copy the code under test, of a version of its own if one is given, into a repository of one commit."""
    shutil.copytree(ROOT, folder, ignore=_SKIPPED)
    shutil.copy(ROOT / ".gitignore", folder)
    if version:
        (folder / "troupe_tasks" / "__init__.py").write_text(
            f'"""A test\'s."""\n\n__version__ = "{version}"\n'
        )
    env = {**os.environ, "GIT_AUTHOR_DATE": _WHEN, "GIT_COMMITTER_DATE": _WHEN}
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        subprocess.run([*_GIT, "-C", folder, *words], env=env, check=True, timeout=60)
    return folder


def build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the release session in a clone; what it made is in its dist/."""
    return subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "nox", "-f", folder / "noxfile.py", "-s", "release", "--", *words],
        capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


def release(folder: Path, address: str, *, version: str = "") -> Path:
    """Build a release for an address, and return the folder of its files."""
    done = build(clone(folder, version=version), "--address", address)
    assert done.returncode == 0, done.stderr
    return folder / "dist"
