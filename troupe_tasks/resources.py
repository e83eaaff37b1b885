"""Find the folders that come with troupe beside its package: kits, guest programs, systemd units.

In a checkout they lie beside `troupe_tasks/`; a wheel carries them in `troupe_tasks/_data/`.
"""

from __future__ import annotations

from pathlib import Path

from troupe_tasks.errors import NotReady

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    for place in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if place.is_dir():
            return place
    raise NotReady(
        f"troupe's own folder {name}/ is not there",
        cause=f"neither beside nor inside {_PACKAGE}",
        hint="This installation is incomplete: install troupe again, or clone it afresh.",
    )


def kits_dir() -> Path:
    """Return the folder of the kits that troupe brings, one folder a type."""
    return _folder("kits")


def guest_dir() -> Path:
    """Return the folder of the programs that run inside sandboxes."""
    return _folder("guest")


def units_dir() -> Path:
    """Return the folder of the systemd units."""
    return _folder("units")


def checkout() -> Path | None:
    """Return the root of the checkout that troupe runs from, or None for an installed troupe."""
    root = _PACKAGE.parent
    return root if (root / "troupe").is_file() and (root / "tasks.py").is_file() else None


def import_root() -> Path:
    """Return the folder that the package is imported from, for a program of ours that starts elsewhere."""
    return _PACKAGE.parent
