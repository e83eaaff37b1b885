"""What people and machines get wrong: every case a clear error with its status, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.house import Ended, House, wait_until
from troupe_tasks.journal import Journal
from troupe_tasks.operations.house import gateway_name
from troupe_tasks.sandbox.protocol import State

NAME, ID = "Bad Input", "bad-input"
REQUEST = ("create", "probe", "--name", NAME, "--rehearsal")
EMOJI = "\N{GRINNING FACE}\N{ROCKET}"

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(300)]
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can mount a small disk or become another user"
)


def said_well(done: Ended, status: int, *words: str) -> None:
    """Assert an error as a person can use it: its status, what happened, what next, no traceback."""
    assert done.status == status, done
    assert done.err.startswith("troupe: ") or "\ntroupe: " in done.err, done
    assert "  next: " in done.err, done
    assert "Traceback" not in done.err, done
    for word in words:
        assert word in done.err, done


@pytest.fixture
def clear(house: House) -> Iterator[House]:
    """Yield the house; whatever the test made is deleted without a trace."""
    yield house
    house.delete(NAME)


@pytest.mark.parametrize(
    "name",
    ["", " ", "x" * 36, EMOJI, "a\nb", "a\x07b", "..", "-", "a\u202eb", "\udc80"],
    ids=ascii,
)
def test_a_name_that_is_none_is_refused_before_anything_is_made(house: House, name: str) -> None:
    before = sorted(house.files())
    said_well(house.troupe("create", "probe", f"--name={name}", "--rehearsal"), 2)
    assert sorted(house.files()) == before


def test_an_unknown_type_is_refused_and_the_known_ones_are_listed(house: House) -> None:
    said_well(house.troupe("create", "nobody", "--name", NAME, "--rehearsal"), 2, "hermes")


def test_with_json_the_error_is_all_that_is_said(house: House) -> None:
    done = house.troupe("create", "nobody", "--name", NAME, "--rehearsal", "--json")
    assert json.loads(done.err)["status"] == done.status == 2
    assert done.out == ""


@pytest.mark.parametrize("flag", ["--cpu", "--memory", "--storage"])
@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", "2 bananas", "1e400", "0x10"])
def test_a_size_that_is_none_is_refused(house: House, flag: str, size: str) -> None:
    said_well(house.troupe(*REQUEST, f"{flag}={size}"), 2, flag)
    assert house.traces(ID) == []


def test_a_name_that_folds_to_a_taken_id_is_refused(clear: House) -> None:
    clear.create(NAME)
    said_well(clear.troupe("create", "probe", "--name", "bad  INPUT!", "--rehearsal"), 3, ID)


def test_of_two_creates_at_once_one_wins(clear: House) -> None:
    pair = [clear.start(*REQUEST) for _ in range(2)]
    outs = [one.communicate(timeout=170) for one in pair]
    ended = [Ended(one.returncode, *out) for one, out in zip(pair, outs, strict=True)]
    assert sorted(one.status for one in ended) == [0, 3], [str(one) for one in ended]
    said_well(max(ended, key=lambda one: one.status), 3)


def test_without_the_rehearsal_model_the_agent_stays_and_the_cause_is_named(clear: House) -> None:
    clear.create(NAME)
    clear.rooms.services.stop(("rehearsal",))
    try:
        done = clear.troupe("chat", ID, "anybody?")
        said_well(done, 5)
    finally:
        assert clear.troupe("restart", ID).status == 0
    wait_until(lambda: clear.troupe("chat", ID, "anybody?").status == 0)


def test_ctrl_c_at_any_moment_leaves_a_create_that_can_be_finished(clear: House) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    for _ in range(10):
        child = clear.start(*REQUEST)
        # A random moment is the point: there is nothing to wait for. Before the first, Python itself is not up.
        time.sleep(moments.uniform(0.25, 3.0))
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=100)
        ended = Ended(child.returncode, out, err)
        assert "Traceback" not in err, (seed, str(ended))
        # Nothing said at all: it fell into Python's own start, before there was a troupe to handle it.
        early = not out and not err and child.returncode in (1, -signal.SIGINT)
        assert child.returncode in (130, 0, 3) or early, (seed, str(ended))
        if child.returncode == 3:  # the one before was interrupted with its last step already done
            assert "already" in err, (seed, str(ended))
        if child.returncode in (0, 3):  # it was quicker than Ctrl-C: once more from the beginning
            assert Journal(clear.paths, ID).unfinished() is None, seed
            clear.delete(NAME)
    done = clear.troupe(*REQUEST)
    assert done.status in (0, 3), (seed, str(done))
    assert done.status == 0 or "already" in done.err, (seed, str(done))
    assert Journal(clear.paths, ID).unfinished() is None
    assert clear.troupe("start", ID).status == 0
    assert clear.troupe("chat", ID, "well?").status == 0


def test_a_reader_that_goes_away_is_no_error(clear: House) -> None:
    clear.create(NAME)
    words = " ".join(clear.argv("receipts", ID, "--json"))
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", f"{words} | head -1"], capture_output=True, encoding="utf-8",
        env=clear.env(), cwd="/", timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "[\n"
    assert done.stderr == ""


def test_in_the_plain_locale_names_and_answers_are_shown(clear: House) -> None:
    done = clear.troupe("create", "probe", "--name", NAME, "--rehearsal", env={"LC_ALL": "C", "LANG": "C"})
    assert done.status == 0, done
    said = clear.troupe(
        "chat", ID, "caf\N{LATIN SMALL LETTER E WITH ACUTE}", env={"LC_ALL": "C", "LANG": "C"}
    )
    assert said.status == 0, said
    assert "caf" in said.out


def test_without_a_terminal_nothing_is_asked(clear: House) -> None:
    clear.create(NAME)
    said_well(clear.troupe("delete", ID), 3, "--yes-i-mean")
    said_well(clear.troupe("chat", ID), 2)
    assert clear.troupe("status", ID).status == 0


@pytest.fixture
def small(house: House) -> Iterator[House]:
    """Yield another house, on a disk of 64 MiB."""
    home = Path(tempfile.mkdtemp(prefix="troupe-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "troupe-test", str(home)]
    subprocess.run(mount, check=True, timeout=20)
    other = House(home, house.code)
    try:
        other.paths.data.mkdir(parents=True, mode=0o700)
        for name in ("images", "tools"):
            (other.paths.data / name).mkdir(mode=0o700)
            bind = ["mount", "--bind", str(house.paths.data / name), str(other.paths.data / name)]
            subprocess.run(bind, check=True, timeout=20)
        yield other
        (home / "filler").unlink(missing_ok=True)
        other.forget()
    finally:
        subprocess.run(["umount", "--lazy", home], check=True, timeout=20)
        home.rmdir()


@needs_root
@pytest.mark.parametrize("left_kib", [0, 48, 300, 700])
def test_a_disk_that_fills_in_the_middle_of_create_is_told_and_delete_removes_all(
    small: House, left_kib: int
) -> None:
    with (small.home / "filler").open("wb") as filler:
        room = os.statvfs(small.home)
        filler.write(b"\0" * (room.f_bavail * room.f_bsize - (left_kib << 10)))
    said_well(small.troupe(*REQUEST, "--force"), 4)
    deleted = small.troupe("delete", ID, "--yes-i-mean", NAME)
    assert deleted.status in (0, 3), deleted
    assert small.traces(ID) == [], deleted


@needs_root
def test_an_agent_is_stopped_on_a_disk_that_is_full(small: House) -> None:
    assert small.troupe(*REQUEST, "--storage", "64MiB", "--force").status == 0
    with (small.home / "filler").open("wb", buffering=0) as filler, suppress(OSError):  # at last
        while True:
            filler.write(bytes(4096))
    assert os.statvfs(small.home).f_bavail == 0
    assert small.rooms.services.states()[gateway_name(ID)].phase.up
    assert sandbox_is_up(small)
    said_well(small.troupe("restart", ID, "--force"), 4, "no room left")
    assert sandbox_is_up(small)  # it could not have been started again
    said_well(small.troupe("stop", ID), 4, f"{ID} is stopped")
    assert gateway_name(ID) not in small.rooms.services.states()
    assert not sandbox_is_up(small)
    (small.home / "filler").write_bytes(b"")
    assert small.troupe("stop", ID).status == 0
    assert small.troupe("start", ID, "--force").status == 0


def sandbox_is_up(small: House) -> bool:
    (found,) = small.rooms.driver("capsule").list().sandboxes
    return found.state is State.RUNNING


@needs_root
def test_a_home_that_cannot_be_written_is_told(house: House, tmp_path: Path) -> None:
    home = tmp_path / "read-only"
    home.mkdir(mode=0o755)
    script = f'mount -t tmpfs -o ro troupe-test {home} && exec "$@"'
    inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    done = house.troupe(*REQUEST, env={"HOME": str(home)}, wrapped_in=inside)
    said_well(done, 4, str(home))


@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_STATE_HOME"])
def test_a_folder_that_is_a_dangling_link_is_told(house: House, tmp_path: Path, variable: str) -> None:
    place = tmp_path / "link"
    place.symlink_to(tmp_path / "nowhere")
    said_well(house.troupe(*REQUEST, env={variable: str(place), "HOME": str(tmp_path)}), 4, str(place))


@needs_root
@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_STATE_HOME"])
def test_a_folder_of_another_user_is_told(house: House, tmp_path: Path, variable: str) -> None:
    place = tmp_path / "theirs"
    (place / "troupe").mkdir(parents=True)
    os.chown(place / "troupe", 12345, 12345)
    done = house.troupe(*REQUEST, env={variable: str(place), "HOME": str(tmp_path)})
    said_well(done, 4, str(place))
