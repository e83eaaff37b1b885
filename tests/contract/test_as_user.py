"""The same suite as an ordinary user, when the suite itself runs as root."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

_USER = 65534
_CODE = Path(__file__).parents[2]
# In a mount namespace of its own everything that the suite needs is bound where any user may read it.
_STAGED = """\
set -e
mount -t tmpfs -o mode=755 stage /mnt
while [ "$1" != -- ]; do
    if [ -d "$2" ]; then mkdir "/mnt/$1"; else : >"/mnt/$1"; fi
    mount --bind "$2" "/mnt/$1"
    shift 2
done
shift
cd /mnt/code
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this is an ordinary user already")
@pytest.mark.timeout(520)
def test_the_suite_holds_for_an_ordinary_user(image: Path, runsc: Path | None) -> None:
    python = Path(sys.executable).resolve()
    shown = {
        "code": _CODE,
        "python": Path(sys.base_prefix),
        "site": Path(sysconfig.get_path("purelib")),
        "image": image,
    }
    if runsc is not None:
        shown["runsc"] = runsc
    with tempfile.TemporaryDirectory(prefix="troupe-user-") as home:
        os.chown(home, _USER, _USER)
        env = {
            "HOME": home, "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": "/mnt/site",
            "TROUPE_TEST_ROOTFS": "/mnt/image", **({"TROUPE_TEST_RUNSC": "/mnt/runsc"} if runsc else {}),
        }  # fmt: skip
        interpreter = f"/mnt/python/{python.relative_to(Path(sys.base_prefix).resolve())}"
        command = [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", _STAGED, "sh"),
            *(word for name, place in shown.items() for word in (name, str(place))), "--",
            *("setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--"),
            *(interpreter, "-B", "-m", "pytest"),
            *("-p", "no:cacheprovider", "-q", "tests/contract/test_sandbox.py", "tests/contract/test_walls.py"),
            # What these ask is the same of both users' files.
            *("-k", "not killed_at_any_moment and not of_its_own_damaged", "-m", "not chaos"),
        ]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=500)
    print(shlex.join(command), done.stdout[-6000:], done.stderr[-2000:], sep="\n")
    assert done.returncode == 0
