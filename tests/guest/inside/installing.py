"""The installer, killed at each program of its unit's step; run inside the guest, as root, after daemon.py.

Each run goes on from what the one killed before it left, and one goes on to its end: that shows of every place that it
can be gone on from, and waits for half as many of them. The unit suite kills it at each program of the other steps.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.guest.inside import help as h
from tests.guest.inside import sbx

_UNITS = Path("/etc/systemd/system")
_FILE, _DROP_IN = _UNITS / sbx.UNIT, _UNITS / f"{sbx.UNIT}.d/troupe.conf"
_WANTED = Path("/opt/troupe/units", sbx.UNIT).read_text(encoding="utf-8")
_OLDER = f"{_WANTED}# older\n"
_DATA = sbx.HOME / ".local/share/troupe"
# A signal to the installer's process group would not do: what sudo runs is root's, and with a terminal in a session of
# its own. But all that it starts stays in its control group, and the kernel kills that at once, whosever it is. What
# systemd starts for it is elsewhere, and goes on.
_GROUP = Path("/sys/fs/cgroup/installer")
_TOLD = Path("/run/installer")
# Where troupe, sudo, and the installer as it is started here look for a program first.
_SHIMS = Path("/usr/local/sbin")
_SHIMMED = ("sha256sum", "sudo", "install", "sync", "mv", "systemctl")
# Writes down what the installer starts, as the user and as root, and kills it all instead of starting one of that.
_SHIM = """#!/bin/sh
read -r group </proc/self/cgroup
[ "$group" = 0::/installer ] || exec {real} "$@"
read -r last <{told}/last
case "{name} $*" in $last) echo 1 >{group}/cgroup.kill; while :; do :; done ;; esac
echo {name} "$@" | head -n 1 >>{told}/started
exec {real} "$@"
"""
_ASKED = "systemctl show *"
# The unit's step, whole, as far as it is root's: a test holds it to what is really started.
_READS = (
    "sudo *", f"install * {_FILE}.new", f"install * {_DROP_IN}.new", "sync *.new", f"mv * {_DROP_IN}", f"mv * {_FILE}",
    "systemctl daemon-reload",
)  # fmt: skip
_STARTS = ("systemctl reset-failed *", "systemctl enable *", "systemctl start *")


@pytest.fixture(autouse=True, scope="module")
def shims() -> Iterator[None]:
    """Have the installer's programs written down, and a control group for it."""
    _GROUP.mkdir()
    (_GROUP / "cgroup.kill").chmod(0o222)
    _TOLD.mkdir()
    for name in ("started", "last"):
        (_TOLD / name).touch()
        (_TOLD / name).chmod(0o666)
    for name in _SHIMMED:
        real = shutil.which(name, path="/usr/bin:/bin")
        text = _SHIM.format(name=name, real=real, told=_TOLD, group=_GROUP)
        (_SHIMS / name).write_text(text, encoding="ascii")
        (_SHIMS / name).chmod(0o755)
    yield
    for name in _SHIMMED:
        (_SHIMS / name).unlink()
    shutil.rmtree(_TOLD)
    _GROUP.rmdir()


def run(folder: Path, *, until: str = "", when: Callable[[], bool] | None = None) -> int:
    """Run the installer, and kill it where it would start a certain program, or when something is so."""
    (_TOLD / "started").write_text("")
    (_TOLD / "last").write_text(f"{until}\n")
    enter = ["/bin/sh", "-c", f'echo $$ >{_GROUP}/cgroup.procs; exec "$@"', "sh"]
    words = sbx.as_user("env", f"PATH={_SHIMS}:/usr/local/bin:/usr/bin:/bin", "sh", "/opt/troupe/install.sh")
    with subprocess.Popen(
        [*enter, *words, "--from", folder],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as installer:
        if when is not None:
            h.until(when, deadline_s=200)
            (_GROUP / "cgroup.kill").write_text("1")
        _, said = installer.communicate(timeout=300)
    h.until(lambda: "populated 0" in (_GROUP / "cgroup.events").read_text(encoding="ascii"))
    print(f"until {until or 'then'}: {installer.returncode}\n{said}")
    return installer.returncode


def outside() -> list[str]:
    """Return the daemons that run outside of the unit."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"\0daemon\0start\0" in (folder / "cmdline").read_bytes():
                found.append((folder / "cgroup").read_text(encoding="ascii").strip())
    return [group for group in found if not group.endswith(f"/{sbx.UNIT}")]


def older() -> None:
    """Have the unit be one that another release brought."""
    _FILE.write_text(_OLDER, encoding="utf-8")
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def prove(version: str, drop_in: str) -> None:
    """Prove that the troupe there works, and that the unit is whole, one of the two, and the only one with a daemon."""
    assert sbx.installed() == version
    assert _FILE.read_text(encoding="utf-8") in {_OLDER, _WANTED}
    assert _DROP_IN.read_text(encoding="utf-8") == drop_in
    assert outside() == []


def releases() -> list[str]:
    return sorted(path.name.partition("-")[0] for path in (_DATA / "releases").glob("[0-9]*"))


def prove_whole(version: str, drop_in: str, *, kept: list[str]) -> None:
    """Prove that an installation went on to its end, and left nothing of those before it but these releases."""
    prove(version, drop_in)
    assert _FILE.read_text(encoding="utf-8") == _WANTED
    facts = {name: sbx.fact(name) for name in ("NeedDaemonReload", "ActiveState", "UnitFileState")}
    assert facts == {"NeedDaemonReload": "no", "ActiveState": "active", "UnitFileState": "enabled"}
    assert (sbx.STATE / "answers").read_text().strip() == sbx.fact("MainPID")
    assert sbx.answers()
    left = {path.name for folder in (_DATA, sbx.HOME / ".local/bin") for path in folder.iterdir()}
    assert left == {"current", "releases", "troupe"}
    assert [*_UNITS.rglob("*.new"), *_DATA.glob("releases/.download")] == []
    assert releases() == sorted([*kept, version])


def test_killed_before_systemd_has_read_the_changed_unit_it_goes_on_and_so_does_the_daemon() -> None:
    before, drop_in, folder = sbx.installed(), _DROP_IN.read_text(encoding="utf-8"), sbx.release("3.0")
    older()
    for program in ("sha256sum --check *", "sync -f *", *_READS):
        pid = sbx.fact("MainPID")
        assert run(folder, until=program) == -signal.SIGKILL, program
        prove(before, drop_in)
        assert sbx.fact("MainPID") == pid
        if program in _READS:
            subprocess.run(["systemctl", "reset-failed", sbx.UNIT], check=True)  # it counts the starts
            subprocess.run(["systemctl", "restart", sbx.UNIT], check=True)
            assert sbx.answers()
    pid = sbx.fact("MainPID")
    assert run(folder) == 0
    prove_whole("3.0", drop_in, kept=[before])
    assert sbx.fact("MainPID") == pid
    started = (_TOLD / "started").read_text(encoding="utf-8").splitlines()
    first, second = (number for number, words in enumerate(started) if fnmatchcase(words, _ASKED))
    step = zip(started[first + 1 : second], (*_READS, *_STARTS), strict=True)
    assert all(fnmatchcase(words, pattern) for words, pattern in step), started


def test_killed_before_the_daemon_is_up_it_goes_on_and_the_switch_is_whole_or_not_at_all() -> None:
    before, drop_in, folder = sbx.installed(), _DROP_IN.read_text(encoding="utf-8"), sbx.release("3.1")
    kept = releases()
    older()
    subprocess.run(["systemctl", "disable", "--now", "--quiet", sbx.UNIT], check=True)
    for program in _STARTS:
        assert run(folder, until=program) == -signal.SIGKILL, program
        prove(before, drop_in)
        assert (sbx.fact("ActiveState"), sbx.answers()) == ("inactive", False)
    (sbx.STATE / "slow").touch()
    assert run(folder, when=lambda: sbx.fact("ActiveState") == "activating") == -signal.SIGKILL
    (sbx.STATE / "slow").unlink()
    h.until(lambda: sbx.fact("ActiveState") == "active")
    prove(before, drop_in)
    for program, version in ((f"mv * {_DATA}/current", before), (f"sync -f {_DATA}/current", "3.1")):
        assert run(folder, until=program) == -signal.SIGKILL, program
        prove(version, drop_in)
    assert run(folder) == 0
    # A run that finds its release current doesn't know which one was before, and leaves them all to the next update.
    prove_whole("3.1", drop_in, kept=kept)
