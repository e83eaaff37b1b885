"""The stage that these tests play on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model.stage import Stage, staged

# Thousands of syncs prove nothing of the disk below; in memory they cost nothing.
_FAST = Path("/dev/shm")


def somewhere_fast(otherwise: Path) -> Path:
    """Return a new folder in memory, or below another one where there is no such place."""
    return Path(tempfile.mkdtemp(prefix="troupe-", dir=_FAST if os.access(_FAST, os.W_OK) else otherwise))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stage]:
    """Yield a stage without an agent."""
    root = somewhere_fast(tmp_path)
    try:
        yield staged(root, monkeypatch)
    finally:
        monkeypatch.undo()
        shutil.rmtree(root, ignore_errors=True)
