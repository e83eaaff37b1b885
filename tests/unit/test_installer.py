"""The installer, with a stand-in for Python: every fault it must survive, without a network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

INSTALLER = Path(__file__).parents[2] / "install.sh"
DEADLINE_S = 20.0
ORDINARY = 1001  # whoever runs the tests
TOOLS = (
    "awk", "cat", "chmod", "cp", "flock", "grep", "ln", "mkdir", "mv", "readlink", "rm", "sha256sum",
    "stat", "sync", "tail", "timeout", "touch", "wc",
)  # fmt: skip

# Plays a system's Python, an environment's own, and the troupe in it.
FAKE_PYTHON = r"""#!/bin/sh
case "$*" in
    *ensurepip*) echo "$0" ;;
    *troupe_tasks.operations.daemon*)
        [ -z "${FAKE_UNITS_STATUS-}" ] || { echo 'Error: a daemon runs outside' >&2; exit "$FAKE_UNITS_STATUS"; } ;;
    *"-m venv"*)
        for dir; do :; done
        mkdir -p "$dir/bin"
        cp "$0" "$dir/bin/python" ;;
    *"-m pip"*)
        [ -z "${FAKE_PIP_STATUS-}" ] || { echo 'no route to the package index'; exit "$FAKE_PIP_STATUS"; }
        for wheel; do :; done
        case $wheel in *.whl)
            version=${wheel##*/troupe-}
            printf '#!/bin/sh\n[ ! -e "%s" ] || exit 1\necho "troupe     %s"\n' "$BROKEN" "${version%%-py3*}" \
                >"${0%/*}/troupe"
            chmod +x "${0%/*}/troupe" ;;
        esac ;;
esac
"""
# Counts every program that the installer starts, and takes it and its children down at one of them.
SHIM = r"""#!/bin/sh
exec 8>>"$COUNT"
PATH=$REAL_PATH
flock 8
n=$(($(wc -c <"$COUNT") + 1))
[ "$n" != "${KILL_AT-}" ] || kill -9 0
printf . >&8
exec 8>&-
exec "${0##*/}" "$@"
"""


@dataclass
class Machine:
    """A home, a release beside it, and a machine that has what `bin` holds."""

    home: Path
    bin: Path
    share: Path

    @property
    def data(self) -> Path:
        return self.home / ".local/share/troupe"

    @property
    def program(self) -> Path:
        return self.home / ".local/bin/troupe"

    def release(self, version: str, *, more: str = "") -> Path:
        folder = self.share / f"release-{version}{more}"
        folder.mkdir()
        wheel = f"troupe-{version}-py3-none-any.whl"
        files = {"VERSION": f"{version}\n", "requirements.lock": f"invoke==3 # {more}\n", wheel: "a wheel"}
        for name, text in files.items():
            (folder / name).write_text(text)
        rows = [f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in files.items()]
        (folder / "SHA256SUMS").write_text("".join(rows))
        return folder

    def start(self, *words: str | Path, **extra: str) -> subprocess.Popen[str]:
        env = {
            "PATH": str(self.bin), "HOME": str(self.home), "BROKEN": str(self.share / "broken"),
            "COUNT": str(self.share / "count"), "REAL_PATH": os.environ["PATH"],
        }  # fmt: skip
        return subprocess.Popen(
            ["/bin/sh", INSTALLER, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8",
            stderr=subprocess.PIPE, env={**env, **extra}, start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str | Path, **extra: str) -> tuple[int, str]:
        running = self.start(*words, **extra)
        out, said = running.communicate(timeout=DEADLINE_S)
        assert out == ""
        return running.returncode, said

    def installed(self) -> str:
        """Return the version that the program on the PATH tells."""
        done = subprocess.run(
            [self.program], capture_output=True, encoding="utf-8", check=True, timeout=DEADLINE_S
        )
        return done.stdout.split()[1]

    def releases(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in (self.data / "releases").glob("[0-9]*"))

    def counted(self) -> None:
        """Have every program that the installer starts counted."""
        for tool in (*TOOLS, "id", "python3.11"):
            (self.bin / tool).rename(self.share / "real" / tool)
            (self.bin / tool).write_text(SHIM)
            (self.bin / tool).chmod(0o755)

    def tool(self, name: str, script: str) -> None:
        (self.bin / name).unlink(missing_ok=True)  # it may be a link to the machine's own
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "a person's home", tmp_path / "bin", tmp_path / "share")
    for folder in (made.home, made.bin, made.share, made.share / "real"):
        folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (made.bin / tool).symlink_to(found)
    made.tool("python3.11", FAKE_PYTHON)
    made.tool("id", f"#!/bin/sh\necho {ORDINARY}\n")
    made.tool("stat", f'#!/bin/sh\n[ ! -e "$4/.foreign" ] || {{ echo 1; exit; }}\necho {ORDINARY}\n')
    return made


def test_it_installs_says_so_and_leaves_nothing_else(machine: Machine) -> None:
    status, said = machine.run("--from", machine.release("1.0"))
    assert (status, machine.installed()) == (0, "1.0"), said
    assert f"troupe 1.0 is installed: {machine.program}" in said
    assert machine.data.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in machine.data.iterdir()) == ["current", "releases"]
    assert [path.name[:4] for path in sorted((machine.data / "releases").iterdir())] == [".loc", "1.0-"]
    assert [path.name for path in machine.program.parent.iterdir()] == ["troupe"]


def test_a_second_run_makes_nothing_anew(machine: Machine) -> None:
    release = machine.release("1.0")
    machine.run("--from", release)
    (mark,) = machine.data.glob("releases/*/troupe.made")
    before = mark.stat()
    status, said = machine.run("--from", release)
    assert (status, machine.installed()) == (0, "1.0")
    assert "1.0 is here already" in said
    assert (mark.stat().st_ino, mark.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_update_keeps_the_release_before_and_no_older_one(machine: Machine) -> None:
    for version in ("1.0", "1.1", "1.2"):
        assert machine.run("--from", machine.release(version))[0] == 0
        assert machine.installed() == version
    assert machine.releases() == ["1.1", "1.2"]


def test_a_release_that_was_built_anew_gets_a_folder_of_its_own(machine: Machine) -> None:
    machine.run("--from", machine.release("1.0"))
    first = (machine.data / "current").resolve()
    assert machine.run("--from", machine.release("1.0", more="again"))[0] == 0
    assert (machine.data / "current").resolve() != first
    assert (first / "troupe.made").exists()


@pytest.fixture
def running(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    machine.run("--from", machine.release("0.9"))
    program = (machine.data / "current").resolve() / "bin/sleeps"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        yield process
        process.kill()


def test_a_release_that_something_runs_from_stays(machine: Machine, running: subprocess.Popen[bytes]) -> None:
    for version in ("1.0", "1.1", "1.2"):
        machine.run("--from", machine.release(version))
    assert machine.releases() == ["0.9", "1.1", "1.2"]
    running.kill()
    running.wait()
    machine.run("--from", machine.release("1.3"))
    assert machine.releases() == ["1.2", "1.3"]


def test_a_release_that_a_unit_starts_stays(machine: Machine) -> None:
    machine.run("--from", machine.release("0.9"))
    units = machine.home / ".config/systemd/user/hermes-gateway@jane.service.d"
    units.mkdir(parents=True)
    (units / "troupe.conf").write_text(f'ExecStart=:"{(machine.data / "current").resolve()}/bin/python"\n')
    for version in ("1.0", "1.1"):
        machine.run("--from", machine.release(version))
    assert machine.releases() == ["0.9", "1.0", "1.1"]


def test_an_environment_that_no_longer_runs_is_made_anew(machine: Machine) -> None:
    release = machine.release("1.0")
    machine.run("--from", release)
    (program,) = machine.data.glob("releases/*/bin/troupe")
    program.write_text("#!/nowhere/python\n")
    assert machine.run("--from", release)[0] == 0
    assert machine.installed() == "1.0"
    made = machine.data / "releases"
    before = sorted(made.iterdir())
    assert machine.run("--from", release)[0] == 0
    assert (machine.installed(), sorted(made.iterdir())) == ("1.0", before)


def test_the_current_release_stays_when_it_does_not_prove_itself_and_no_new_one_can_be_made(
    machine: Machine,
) -> None:
    release = machine.release("1.0")
    machine.run("--from", release)
    (machine.share / "broken").touch()  # the machine is busy, say
    status, said = machine.run("--from", release, FAKE_PIP_STATUS="1")
    assert status == 4, said
    (machine.share / "broken").unlink()
    assert machine.installed() == "1.0"
    status, said = machine.run("--from", release)
    assert (status, machine.releases()) == (0, ["1.0"])
    assert "1.0 is here already" in said


def test_a_home_behind_a_link_keeps_the_release_before_too(machine: Machine) -> None:
    link = machine.share / "home"
    link.symlink_to(machine.home)
    for version in ("1.0", "1.1"):
        release = machine.release(version)
        for _ in range(2):
            assert machine.run("--from", release, HOME=str(link))[0] == 0
    assert machine.releases() == ["1.0", "1.1"]


@pytest.mark.parametrize("folder", ["troupe", "troupe/releases"])
@pytest.mark.parametrize("what", ["a link", "a dead link", "another user's"])
def test_a_folder_that_is_a_link_or_another_users_is_refused(
    machine: Machine, folder: str, what: str
) -> None:
    place, elsewhere = machine.data.parent / folder, machine.share / "elsewhere"
    place.parent.mkdir(parents=True)
    if what == "another user's":
        place.mkdir()
        (place / ".foreign").touch()
    else:
        place.symlink_to(elsewhere)
    if what == "a link":
        elsewhere.mkdir()
    status, said = machine.run("--from", machine.release("1.0"))
    assert status == 3
    assert f"{place} " in said
    assert ("belongs to another user" if what == "another user's" else "is a link") in said
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
    assert not machine.program.exists()


def damaged(release: Path, name: str) -> None:
    (release / name).write_text("something else")


@pytest.mark.parametrize(
    "name", ["VERSION", "requirements.lock", "troupe-1.1-py3-none-any.whl", "SHA256SUMS"]
)
def test_files_that_do_not_have_their_sums_are_refused(machine: Machine, name: str) -> None:
    machine.run("--from", machine.release("1.0"))
    release = machine.release("1.1")
    damaged(release, name)
    status, said = machine.run("--from", release)
    assert (status, machine.installed(), machine.releases()) == (4, "1.0", ["1.0"])
    assert "What to do:" in said


@pytest.mark.parametrize("name", ["VERSION", "requirements.lock", "troupe-1.1-py3-none-any.whl"])
def test_a_file_without_a_sum_is_not_proved(machine: Machine, name: str) -> None:
    release = machine.release("1.1")
    rows = (release / "SHA256SUMS").read_text().splitlines(keepends=True)
    (release / "SHA256SUMS").write_text("".join(row for row in rows if name not in row))
    status, said = machine.run("--from", release)
    assert status == 4
    assert "not what its SHA256SUMS says" in said
    assert not machine.program.exists()


@pytest.mark.parametrize("hidden", ["VERSION", "requirements.lock", "troupe-1.1-py3-none-any.whl"])
@pytest.mark.parametrize("twice", ["the same", "another"])
def test_a_sum_that_is_there_twice_stands_for_no_other(machine: Machine, hidden: str, twice: str) -> None:
    release = machine.release("1.1")
    rows = (release / "SHA256SUMS").read_text().splitlines(keepends=True)
    kept = [row for row in rows if hidden not in row]
    (release / "SHA256SUMS").write_text("".join([*kept, kept[0]]))
    assert machine.run("--from", release)[0] == 4
    other = rows[0] if twice == "the same" else f"{'0' * 64}  {rows[0].split()[1]}\n"
    (release / "SHA256SUMS").write_text("".join([*rows, other]))
    status, said = machine.run("--from", release)
    assert status == 4
    assert "not what its SHA256SUMS says" in said
    assert not machine.program.exists()


@pytest.mark.parametrize("version", ["", "../1.0", "1.0 2", "latest", "1.0\n1.1"])
def test_a_version_that_is_none_is_refused(machine: Machine, version: str) -> None:
    release = machine.release("1.0")
    (release / "VERSION").write_text(version)
    status, said = machine.run("--from", release)
    assert (status, machine.releases()) == (4, [])
    assert "its VERSION is none" in said


def test_root_is_refused_with_the_reason(machine: Machine) -> None:
    machine.tool("id", "#!/bin/sh\necho 0\n")
    status, said = machine.run("--from", machine.release("1.0"))
    assert status == 3
    assert "the user who is to run the agents, and you are root" in said
    assert list(machine.home.iterdir()) == []


def test_a_machine_without_a_python_that_will_do_is_told(machine: Machine) -> None:
    machine.tool("python3.11", "#!/bin/sh\nexit 1\n")
    status, said = machine.run("--from", machine.release("1.0"))
    assert status == 4
    assert "apt-get install --no-install-recommends python3 python3-venv" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--elsewhere"], "there is no word --elsewhere"),
        (["--from"], "--from needs a folder"),
        (["--from", "/nowhere"], "/nowhere holds no release"),
        ([], "has no release address"),
    ],
)
def test_words_that_it_does_not_take(machine: Machine, words: list[str], told: str) -> None:
    status, said = machine.run(*words)
    assert status == 2
    assert told in said
    assert list(machine.home.iterdir()) == []


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_a_program_of_another_kind_stays_untouched(machine: Machine, what: str) -> None:
    machine.program.parent.mkdir(parents=True)
    if what == "a file":
        machine.program.write_text("mine")
    else:
        machine.program.symlink_to("/src/troupe/troupe")
    status, said = machine.run("--from", machine.release("1.0"))
    assert status == 3
    assert f"{machine.program} is not of this installer" in said
    assert not machine.data.exists()


def test_what_pip_says_is_shown_and_the_troupe_of_before_stays(machine: Machine) -> None:
    machine.run("--from", machine.release("1.0"))
    release = machine.release("1.1")
    status, said = machine.run("--from", release, FAKE_PIP_STATUS="1")
    assert (status, machine.installed()) == (4, "1.0")
    assert "no route to the package index" in said
    assert machine.run("--from", release)[0] == 0
    assert machine.installed() == "1.1"


def test_a_troupe_that_does_not_run_never_becomes_the_current_one(machine: Machine) -> None:
    machine.run("--from", machine.release("1.0"))
    (machine.share / "broken").touch()
    release = machine.release("1.1")
    status, said = machine.run("--from", release)
    assert status == 4
    assert "does not say that it is troupe 1.1" in said
    assert (machine.data / "current").resolve().name.startswith("1.0-")
    (machine.share / "broken").unlink()
    assert machine.run("--from", release)[0] == 0
    assert machine.installed() == "1.1"


def test_a_unit_that_is_refused_leaves_the_troupe_of_before(machine: Machine) -> None:
    machine.run("--from", machine.release("1.0"))
    release = machine.release("1.1")
    status, said = machine.run("--from", release, FAKE_UNITS_STATUS="3")
    assert (status, machine.installed()) == (3, "1.0")
    assert said.endswith("Error: a daemon runs outside\ntroupe: the troupe of before is as it was.\n")
    assert machine.run("--from", release, "--without-units", FAKE_UNITS_STATUS="3")[0] == 0
    assert machine.installed() == "1.1"


def test_a_download_that_was_cut_off_anywhere_does_nothing(machine: Machine, tmp_path: Path) -> None:
    text = INSTALLER.read_text(encoding="utf-8")
    release = machine.release("1.0")
    for length in range(0, len(text) - len('main "$@"\n') + 1, 97):
        cut = tmp_path / "cut.sh"
        cut.write_text(text[:length], encoding="utf-8")
        subprocess.run(
            ["/bin/sh", cut, "--from", release], env={"PATH": str(machine.bin), "HOME": str(machine.home)},
            capture_output=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert list(machine.home.iterdir()) == [], length


def commands(machine: Machine) -> int:
    found = (machine.share / "count").stat().st_size
    (machine.share / "count").unlink()
    return found


def test_killed_at_any_command_the_troupe_of_before_works_and_the_next_run_goes_on(machine: Machine) -> None:
    machine.run("--from", machine.release("1.0"))
    old, release = (machine.data / "current").resolve(), machine.release("1.1")
    saved = machine.share / "saved"
    shutil.copytree(machine.home, saved, symlinks=True)
    machine.counted()
    path = f"{machine.share / 'real'}:{os.environ['PATH']}"
    assert machine.run("--from", release, REAL_PATH=path)[0] == 0
    total = commands(machine)
    assert total > 25
    seen: list[str] = []
    for number in range(1, total + 1):
        shutil.rmtree(machine.home)
        shutil.copytree(saved, machine.home, symlinks=True)
        status, said = machine.run("--from", release, REAL_PATH=path, KILL_AT=str(number))
        assert status == -signal.SIGKILL, (number, said)
        seen.append(machine.installed())
        assert (old / "troupe.made").exists()
        status, said = machine.run("--from", release, REAL_PATH=path)
        assert (status, machine.installed()) == (0, "1.1"), (number, said)
        left = {path.name for path in machine.data.iterdir()} | {
            p.name for p in machine.program.parent.iterdir()
        }
        assert left == {"current", "releases", "troupe"}, number
        assert machine.releases() == ["1.0", "1.1"]
        assert not (machine.data / "releases/.download").exists()
        commands(machine)
    assert seen == sorted(seen)
    assert set(seen) == {"1.0", "1.1"}


def test_two_at_once_take_turns(machine: Machine) -> None:
    release = machine.release("1.0")
    pair = [machine.start("--from", release) for _ in range(2)]
    said = [one.communicate(timeout=DEADLINE_S)[1] for one in pair]
    assert [one.returncode for one in pair] == [0, 0], said
    assert len(re.findall(r"step 1 of 2", "".join(said))) == 1
    assert machine.installed() == "1.0"
