"""The folders that come with troupe are found in a checkout and in an installed package alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks import resources
from troupe_tasks.errors import NotReady

ROOT = Path(__file__).parents[2]


def test_a_checkout_uses_its_own_folders() -> None:
    assert resources.kits_dir() == ROOT / "kits"
    assert resources.guest_dir() == ROOT / "guest"
    assert resources.checkout() == ROOT


def test_an_installed_package_uses_what_its_wheel_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "troupe_tasks"
    (package / "_data" / "kits").mkdir(parents=True)
    (package.parent / "kits").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.kits_dir() == package / "_data" / "kits"
    assert resources.checkout() is None


def test_an_incomplete_installation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "troupe_tasks")
    with pytest.raises(NotReady, match="guest/ is not there"):
        resources.guest_dir()
