"""The launcher, with a stand-in for Python: every fault it must survive, without a network."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).parents[2] / "troupe"
DEADLINE_S = 20.0
REAL_TOOLS = (
    "cat", "chmod", "cmp", "cp", "find", "flock", "grep", "ln", "mkdir", "mv", "readlink", "rm", "rmdir",
    "sh", "sleep", "sync", "tail", "touch",
)  # fmt: skip

# Plays both a system's Python (asked where it is; told to make an environment) and an environment's own.
FAKE_PYTHON = r"""#!/bin/sh
echo "$*" | tr '\n' ' ' >>"$CALLS"; echo >>"$CALLS"
case "$*" in
    *ensurepip*) echo "$0"; exit "${FAKE_PROBE_STATUS:-0}" ;;
    *"-m venv"*)
        for dir; do :; done
        [ -z "${FAKE_VENV_STATUS-}" ] || { echo 'venv went wrong'; exit "$FAKE_VENV_STATUS"; }
        mkdir -p "$dir/bin" "$dir/lib/python3.11/site-packages"
        cp "$0" "$dir/bin/python" ;;
    *"-m pip"*)
        [ -z "${FAKE_PIP_GATE-}" ] || { touch "$FAKE_PIP_GATE.reached"
            while [ ! -e "$FAKE_PIP_GATE" ]; do sleep 0.02; done; }
        [ -z "${FAKE_PIP_STATUS-}" ] || { echo 'no route to the package index'; exit "$FAKE_PIP_STATUS"; } ;;
    *) for word; do printf '<%s>' "$word"; done ;;
esac
"""


@dataclass
class Clone:
    """A clone that holds the launcher and two lock files, on a machine that has what `bin` holds."""

    root: Path
    bin: Path
    calls_file: Path

    def env(self, extra: Mapping[str, str]) -> dict[str, str]:
        return {"PATH": str(self.bin), "CALLS": str(self.calls_file), "HOME": str(self.root.parent), **extra}

    def run(self, *words: str, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "troupe", *words], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            env=self.env(extra), cwd=cwd or self.root, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def start(self, *words: str, **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "troupe", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8", env=self.env(extra), cwd=self.root,
        )  # fmt: skip

    def calls(self, part: str) -> int:
        text = self.calls_file.read_text(encoding="utf-8") if self.calls_file.exists() else ""
        return sum(part in line for line in text.splitlines())

    def tool(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def stamp(self) -> Path:
        return self.root / ".venv" / "troupe.lock"


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    root, bin_dir = tmp_path / "a clone's folder", tmp_path / "bin"
    root.mkdir()
    bin_dir.mkdir()
    for tool in (*REAL_TOOLS, "tr"):
        found = shutil.which(tool)
        assert found, tool
        (bin_dir / tool).symlink_to(found)
    shutil.copy(LAUNCHER, root / "troupe")
    (root / "requirements.lock").write_text("invoke==3.0.3 \\\n    --hash=sha256:00\n", encoding="utf-8")
    (root / "requirements-dev.lock").write_text("nox==1 \\\n    --hash=sha256:00\n", encoding="utf-8")
    made = Clone(root=root, bin=bin_dir, calls_file=tmp_path / "calls")
    made.tool("python3.11", FAKE_PYTHON)
    made.tool("id", "#!/bin/sh\necho 0\n")
    return made


def wait_until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < deadline, "the condition was never met"
        time.sleep(0.01)


def test_first_use_makes_the_environment_says_so_and_runs_the_words_verbatim(clone: Clone) -> None:
    done = clone.run("chat", "", "two words", "a\nb", "--x=*")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<-I><-X><utf8><-m><troupe_tasks><chat><><two words><a\nb><--x=*>"
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == ["troupe:"] * 3
    assert "1 packages" in done.stderr


def test_packages_are_installed_by_hash_alone(clone: Clone) -> None:
    clone.run("list")
    assert clone.calls("--require-hashes --no-deps --only-binary :all:") == 1


def test_second_use_makes_nothing_and_says_nothing(clone: Clone) -> None:
    clone.run("list")
    done = clone.run("list")
    assert (done.returncode, done.stderr) == (0, "")
    assert clone.calls("-m venv") == clone.calls("-m pip") == 1


def test_a_new_lock_file_makes_the_environment_anew(clone: Clone) -> None:
    clone.run("list")
    (clone.root / "requirements.lock").write_text("invoke==3.0.4 --hash=sha256:00\n", encoding="utf-8")
    os.utime(clone.root / "requirements.lock", (1, 1))
    assert clone.run("list").returncode == 0
    assert clone.calls("-m pip") == 2


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_making_is_made_anew(clone: Clone, tmp_path: Path, sent: signal.Signals) -> None:
    gate = tmp_path / "gate"
    first = clone.start("list", FAKE_PIP_GATE=str(gate))
    wait_until(Path(f"{gate}.reached").exists)
    assert not clone.stamp().exists()
    first.send_signal(sent)
    gate.touch()
    first.communicate(timeout=DEADLINE_S)
    assert first.returncode != 0
    assert not clone.stamp().exists()
    assert clone.run("list").returncode == 0
    assert clone.calls("-m venv") == 2
    assert clone.stamp().read_bytes() == (clone.root / "requirements.lock").read_bytes()


def test_what_an_interruption_left_running_ends_before_the_next_making_begins(
    clone: Clone, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = clone.start("list", FAKE_PIP_GATE=str(gate))
    wait_until(Path(f"{gate}.reached").exists)
    first.kill()
    first.wait(timeout=DEADLINE_S)
    second = clone.start("list")
    assert second.stderr is not None
    assert "waiting" in second.stderr.readline()
    assert clone.calls("-m venv") == 1
    gate.touch()
    first.communicate(timeout=DEADLINE_S)
    assert second.communicate(timeout=DEADLINE_S)[0].endswith("<list>")
    assert clone.calls("-m venv") == 2


def test_two_at_once_make_it_once_and_both_run(clone: Clone, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = clone.start("one", FAKE_PIP_GATE=str(gate))
    wait_until(Path(f"{gate}.reached").exists)
    second = clone.start("two")
    assert second.stderr is not None
    assert "another troupe is making" in second.stderr.readline()
    gate.touch()
    assert first.communicate(timeout=DEADLINE_S)[0].endswith("<one>")
    assert second.communicate(timeout=DEADLINE_S)[0].endswith("<two>")
    assert clone.calls("-m venv") == clone.calls("-m pip") == 1


def test_a_failing_install_says_why_and_what_to_do_and_the_next_run_starts_over(clone: Clone) -> None:
    done = clone.run("list", FAKE_PIP_STATUS="1")
    assert done.returncode == 4
    assert "no route to the package index" in done.stderr
    assert "What to do:" in done.stderr
    assert done.stdout == ""
    assert clone.run("list").returncode == 0


def test_an_environment_that_could_not_be_made_says_why(clone: Clone) -> None:
    done = clone.run("list", FAKE_VENV_STATUS="1")
    assert done.returncode == 4
    assert "venv went wrong" in done.stderr


def test_an_environment_whose_python_is_gone_is_made_anew(clone: Clone) -> None:
    clone.run("list")
    python = clone.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3.11")
    assert clone.run("list").returncode == 0
    assert clone.calls("-m venv") == 2


def test_an_environment_of_the_persons_own_is_left_alone(clone: Clone) -> None:
    mine = clone.root / ".venv" / "mine"
    mine.parent.mkdir()
    mine.write_text("precious", encoding="utf-8")
    done = clone.run("list")
    assert done.returncode == 4
    assert "was not made by ./troupe" in done.stderr
    assert mine.read_text(encoding="utf-8") == "precious"


def test_a_clone_that_cannot_be_written_is_told(clone: Clone) -> None:
    (clone.root / ".venv.lock").mkdir()
    done = clone.run("list")
    assert done.returncode == 4
    assert "can't be written" in done.stderr


def test_it_runs_through_a_link_from_another_folder(clone: Clone, tmp_path: Path) -> None:
    link = tmp_path / "bin" / "troupe"
    link.symlink_to(clone.root / "troupe")
    done = subprocess.run(
        ["troupe", "list"], executable=link, env=clone.env({}), cwd="/", capture_output=True,
        encoding="utf-8", timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("<list>")
    assert clone.stamp().exists()


def test_the_checkout_is_importable_by_a_relative_path_so_that_a_clone_can_move(clone: Clone) -> None:
    clone.run("list")
    site = clone.root / ".venv/lib/python3.11/site-packages"
    assert (site / (site / "troupe-checkout.pth").read_text(encoding="utf-8").strip()).resolve() == clone.root


def test_test_runs_nox_in_an_environment_of_its_own(clone: Clone) -> None:
    done = clone.run("test", "-s", "unit")
    assert done.stdout.endswith(f"<-m><nox><-f><{clone.root}/noxfile.py><-s><unit>")
    assert (clone.root / ".venv-dev" / "troupe.lock").exists()
    assert not (clone.root / ".venv").exists()


def test_a_shim_that_runs_nothing_is_passed_over(clone: Clone) -> None:
    clone.tool("python3.13", "#!/bin/sh\nexit 127\n")
    assert clone.run("list").returncode == 0


FAKE_APT = r"""#!/bin/sh
echo "apt-get $*" >>"$CALLS"
case "$*" in *install*) ln -s python3.11.kept "$BIN/python3" ;; esac
"""


@pytest.fixture
def bare(clone: Clone) -> Clone:
    """Take Python away; the stand-in for apt-get brings it."""
    (clone.bin / "python3.11").rename(clone.bin / "python3.11.kept")
    clone.tool("apt-get", FAKE_APT)
    clone.tool("env", '#!/bin/sh\nshift\nexec "$@"\n')
    return clone


def test_root_without_a_terminal_installs_python_after_saying_so(bare: Clone) -> None:
    done = bare.run("list", BIN=str(bare.bin))
    assert done.returncode == 0, done.stderr
    assert "missing system packages: python3 python3-venv" in done.stderr
    assert bare.calls("apt-get -qq install -y --no-install-recommends python3 python3-venv") == 1


def test_an_ordinary_user_without_a_terminal_is_given_the_command(bare: Clone) -> None:
    bare.tool("id", "#!/bin/sh\necho 1000\n")
    done = bare.run("list", BIN=str(bare.bin))
    assert done.returncode == 4
    assert "sudo apt-get install --no-install-recommends python3 python3-venv" in done.stderr
    assert bare.calls("apt-get") == 0


def test_a_system_without_apt_is_told_what_is_needed(bare: Clone) -> None:
    (bare.bin / "apt-get").unlink()
    done = bare.run("list")
    assert done.returncode == 4
    assert "Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize(
    ("answer", "installs", "status"), [(b"y\n", 1, 0), (b"n\n", 0, 4), (b"\n", 0, 4), (b"\x04", 0, 4)]
)
def test_on_a_terminal_it_asks_first(bare: Clone, answer: bytes, installs: int, status: int) -> None:
    controller, terminal = pty.openpty()
    try:
        running = subprocess.Popen(
            [bare.root / "troupe", "list"], stdin=terminal, stdout=subprocess.DEVNULL, stderr=terminal,
            env=bare.env({"BIN": str(bare.bin)}), cwd=bare.root,
        )  # fmt: skip
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(controller, 4096)
        assert bare.calls("install") == 0
        os.write(controller, answer)
        assert running.wait(timeout=DEADLINE_S) == status
    finally:
        os.close(controller)
        os.close(terminal)
    assert bare.calls("apt-get -qq install") == installs
