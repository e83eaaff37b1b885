"""The same suite as an ordinary user, when the suite itself runs as root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_USER = 65534
_REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="this is an ordinary user already")
@pytest.mark.timeout(420)
def test_the_suite_holds_for_an_ordinary_user(image: Path) -> None:
    become = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--"]
    python = next((name for name in (sys.executable, "/usr/bin/python3") if _usable(become, name)), None)
    if python is None:
        pytest.skip("an ordinary user can't read this checkout, its Python or the image")
    with tempfile.TemporaryDirectory(prefix="troupe-user-") as home:
        os.chown(home, _USER, _USER)
        env = _env(home) | {"TROUPE_TEST_ROOTFS": str(image)}
        command = [
            *become,
            python,
            "-B",
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-q",
            "tests/contract/test_sandbox.py",
        ]
        done = subprocess.run(
            command, cwd=_REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=400
        )
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0


def _env(home: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTEST_"))}
    return kept | {
        "HOME": home,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if "site-packages" in path),
    }


def _usable(become: list[str], python: str) -> bool:
    code = "import sys, pytest, pydantic, sh; assert sys.version_info >= (3, 11)"
    done = subprocess.run(
        [*become, python, "-B", "-c", code],
        cwd=_REPOSITORY,
        env=_env("/"),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode == 0
