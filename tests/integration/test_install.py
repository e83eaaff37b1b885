"""A real installation from a real release, as an ordinary user, over TLS; then the next release."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from tests.integration import releasing
from troupe_tasks.process import SYSTEM_PATH

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(400)]
_USER = 65534 if os.geteuid() == 0 else None
_DEADLINE_S = 170.0


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing of it."""

    def log_message(self, *said: object) -> None:
        pass


@dataclass
class Stage:
    """A home of an ordinary user's, and the address that releases are put at."""

    folder: Path
    address: str

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def program(self) -> Path:
        return self.home / ".local/bin/troupe"

    def publish(self, dist: Path) -> None:
        shutil.rmtree(self.site, ignore_errors=True)
        shutil.copytree(dist, self.site)
        self.site.chmod(0o755)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": SYSTEM_PATH, "HOME": str(self.home), "SSL_CERT_FILE": str(self.folder / "ca.pem"),
            "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder / "wheels"), "PIP_CONFIG_FILE": os.devnull,
            "LANG": "C.UTF-8",
        }  # fmt: skip
        return subprocess.run(
            words, env=env, cwd=self.home, user=_USER, group=_USER, extra_groups=[] if _USER else None,
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=_DEADLINE_S, check=False,
        )  # fmt: skip

    def version(self) -> str:
        done = self.run(self.program, "version", "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["troupe"])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    # pytest's own folders are for one user alone, and another one is to come in here.
    with tempfile.TemporaryDirectory(prefix="troupe-install-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "site").mkdir()
        (folder / "home").mkdir()
        if _USER is not None:
            os.chown(folder / "home", _USER, _USER)
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
                "--only-binary=:all:", "--python-version", _python(), "-d", folder / "wheels",
                "-r", releasing.ROOT / "requirements.lock",
            ],
            check=True, timeout=_DEADLINE_S,
        )  # fmt: skip
        for path in (folder / "wheels").rglob("*"):
            path.chmod(0o644)
        (folder / "wheels").chmod(0o755)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(context)
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder / "site")) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield Stage(folder, f"https://localhost:{server.server_port}")
            server.shutdown()


def _python() -> str:
    """Return the version of the Python that the installer will find."""
    script = 'for p in python3.13 python3.12 python3.11 python3; do "$p" -I -c "$1" 2>/dev/null && exit; done'
    asked = 'import sys, ensurepip; assert sys.version_info >= (3, 11); print("%d.%d" % sys.version_info[:2])'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", asked], env={"PATH": SYSTEM_PATH}, capture_output=True, encoding="utf-8",
        timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_release_is_installed_used_and_brought_up_to_date(stage: Stage, tmp_path: Path) -> None:
    stage.publish(releasing.release(tmp_path / "one", stage.address, version="1.0.0"))
    done = stage.run("sh", stage.site / "install.sh")
    assert done.returncode == 0, done.stderr
    assert stage.version() == "1.0.0"
    kits = stage.run(stage.program, "kit", "list")
    assert kits.stdout.splitlines()[1].startswith("hermes "), kits.stderr

    same = stage.run(stage.program, "update")
    assert (same.returncode, same.stdout) == (
        0,
        "nothing to do: this is 1.0.0, and the newest release is 1.0.0\n",
    ), same.stderr

    stage.publish(releasing.release(tmp_path / "two", stage.address, version="1.1.0"))
    told = stage.run(stage.program, "doctor", "--json")
    line = next(row for row in json.loads(told.stdout) if row["requirement"] == "troupe")
    assert (line["verdict"], line["detail"], line["todo"]) == (
        "note",
        "1.0.0; 1.1.0 is out",
        "`troupe update`",
    )

    (stage.site / "requirements.lock").write_text("invoke==0 --hash=sha256:00\n")
    bad = stage.run(stage.program, "update")
    assert bad.returncode == 4
    assert "the release is not what its SHA256SUMS says" in bad.stderr
    assert stage.version() == "1.0.0"

    stage.publish(tmp_path / "two" / "dist")
    updated = stage.run(stage.program, "update", "--json")
    assert updated.returncode == 0, updated.stderr
    assert json.loads(updated.stdout) == {"installed": "1.0.0", "newest": "1.1.0", "updated": True}
    assert stage.version() == "1.1.0"
    left = sorted(
        path.name.partition("-")[0] for path in (stage.home / ".local/share/troupe/releases").iterdir()
    )
    assert left == [".lock", "1.0.0", "1.1.0"]

    (stage.site / "VERSION").unlink()
    gone = stage.run(stage.program, "update")
    assert gone.returncode == 4
    assert "has no VERSION" in gone.stderr
