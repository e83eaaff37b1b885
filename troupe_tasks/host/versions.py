"""Which versions are at work here: troupe's, Python's, the sandbox programs'."""

from __future__ import annotations

import platform
from pathlib import Path

from troupe_tasks import __version__, process, resources, stamp
from troupe_tasks.errors import ToolFailed, ToolMissing
from troupe_tasks.paths import Paths
from troupe_tasks.text import line


def versions() -> dict[str, str]:
    """Return each version by name; a program that is not there says so."""
    runsc = Paths.from_env().tools / "runsc"
    return {
        "troupe": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "gvisor": _said([runsc if runsc.exists() else "runsc", "--version"], "not installed"),
        "bubblewrap": _said(["bwrap", "--version"], "not installed"),
    }


def _commit() -> str:
    root = resources.checkout()
    if root is not None:
        return _said(["git", "-C", root, "rev-parse", "--short=12", "HEAD"], "not a clone")
    built = stamp.read()  # git would tell of whatever repository the installation happens to lie in
    return "not known" if built is None else built.commit


def _said(argv: list[str | Path], otherwise: str) -> str:
    try:
        words = process.run(argv, deadline_s=3).stdout.splitlines()
    except (ToolFailed, ToolMissing):
        return otherwise
    return line(words[0], 80) if words else otherwise
