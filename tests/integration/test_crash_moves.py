"""Moves and backups, killed at every point: at each of them the agent's work is still whole in one place at least."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.crash import kill_at, killed_everywhere, whole
from tests.integration.house import House, cgroups, kits_kept, loops, wait_until
from troupe_tasks import record as records
from troupe_tasks.archives import disk
from troupe_tasks.errors import BackupDamaged
from troupe_tasks.operations import inventory, vault
from troupe_tasks.sandbox.protocol import State

NAME, ID = "Moved Test", "moved-test"
COMMANDS = {
    "resize": ("resize", ID, "--storage", "2"),
    "reset": ("reset", ID, "--yes"),
    "restore": ("restore", ID, "--yes"),
    "upgrade": ("upgrade", ID),
    "backup": ("backup", ID),
    "drill": ("backup", ID, "--drill"),
}
MOVES = ("resize", "upgrade", "restore")
WORK = """\
mkdir -p "/workspace/a b/$(printf 'n\\303\\251\\nx')"
echo precious > "/workspace/a b/one"
ln -s 'one' '/workspace/a b/link'
head -c 300000 /dev/urandom > /workspace/random
truncate -s 20M /workspace/sparse
"""
DIGEST = "find /workspace -type f -exec sha256sum {} + | LC_ALL=C sort | sha256sum"

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(300)]


def inside(house: House, command: str) -> str:
    """Run a shell's words where the agent lives now."""
    where = records.load(house.paths, ID).sandbox
    driver = house.rooms.driver()
    driver.start(where)
    ran = driver.run(where, ["sh", "-c", command], deadline_s=60)
    assert ran.status == 0, ran
    return ran.stdout.decode()


@pytest.fixture(scope="module")
def moved(house: House) -> Iterator[House]:
    with kits_kept(house):
        yield from _moved(house)


def _moved(house: House) -> Iterator[House]:
    house.create(NAME)
    done = house.troupe("config", "set", "reserve", "1")
    assert done.status == 0, done
    inside(house, WORK)
    assert house.troupe(*COMMANDS["backup"]).status == 0
    yield house
    house.delete(NAME)


def new_version(house: House) -> None:
    """Give the kit a new version, with a seed that the agent has edited in the old one."""
    kit = house.code / "kits" / "probe" / "kit.toml"
    was = records.load(house.paths, ID).kit.version
    major, minor, patch = was.split(".")
    text = kit.read_text(encoding="utf-8")
    kit.write_text(text.replace(f'"{was}"', f'"{major}.{minor}.{int(patch) + 1}"'), encoding="utf-8")


def still_somewhere(archives: set[Path]) -> Callable[[House], None]:
    """Return the check that the agent's work is in a sandbox that is whole, or in an archive that is."""

    def check(house: House) -> None:
        record = records.load(house.paths, ID)
        listing = house.rooms.driver().list()
        lives_in = listing.find(record.sandbox)
        assert lives_in is not None
        assert lives_in.state is not State.BROKEN
        if record.move and listing.find(records.sandbox_of(ID, record.move - 1)) is None:
            for folder in set(house.paths.backups(ID).iterdir()) - archives:
                disk.rehash(folder, disk.load(folder))  # what the old sandbox was removed on the word of

    return check


def assert_lives(house: House, digest: str | None) -> None:
    whole(house)
    found = inventory.full(house.rooms, ID)
    assert found.agent.unfinished is None
    assert found.agent.state in ("running", "starting"), found.agent
    record = records.load(house.paths, ID)
    assert record.moving_to is None
    listed = [info.id for info in house.rooms.driver().list().sandboxes]
    assert [name for name in listed if name and records.agent_of(name) == ID] == [record.sandbox]
    assert [path.name for path in house.paths.sandboxes.iterdir() if path.name.startswith(ID)] == [
        record.sandbox
    ]
    ours = [path for path in loops() if path.is_relative_to(house.paths.sandboxes)]
    assert [path.parent.name for path in ours if path.parent.name.startswith(ID)] == [record.sandbox]
    assert len({group.name for group in cgroups(record.sandbox)}) == 1
    if digest is not None:
        assert inside(house, DIGEST) == digest
    wait_until(lambda: inventory.full(house.rooms, ID).agent.state == "running")


def state_of(house: House, operation: str) -> str | None:
    """Bring the agent to where the operation has something to do, and return the digest that it must keep."""
    if operation == "upgrade":
        new_version(house)
    if operation != "reset" and not inside(house, "ls /workspace"):
        inside(house, WORK)
    return None if operation == "reset" else inside(house, DIGEST)


# Each call of every one of them is killed on the stage of tests/model in every run.
@pytest.mark.parametrize(
    "operation",
    [
        "resize",
        # A restore of what the upgrade has archived, which is what the agent has.
        *(
            pytest.param(one, marks=pytest.mark.chaos)
            for one in ("upgrade", "restore", "reset", "backup", "drill")
        ),
    ],
)
def test_killed_at_every_point_in_turn_it_goes_on_and_finishes(moved: House, operation: str) -> None:
    digest = state_of(moved, operation)
    was = records.load(moved.paths, ID)
    command = COMMANDS[operation]
    before = set(moved.paths.backups(ID).iterdir())
    still = still_somewhere(before) if operation in MOVES else lambda _house: None
    killed_everywhere(moved, operation, command, agent=ID, still=still)
    other = moved.troupe("stop", ID)
    assert other.status == 3, other
    again = moved.troupe(*command)
    assert again.status == 0, again
    assert_lives(moved, digest)
    now = records.load(moved.paths, ID)
    assert now.move == was.move + (operation in (*MOVES, "reset"))
    if operation == "resize":
        assert now.sizes.storage_mib == 2048
    if operation == "upgrade":
        assert now.kit.version != was.kit.version
    if operation == "reset":
        assert inside(moved, "ls -A /workspace") == ""
    assert all(found.proved for found in vault.listed(moved.rooms, ID))


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_resize_killed_again_and_again_one_call_later_finishes(moved: House) -> None:
    digest = state_of(moved, "resize")
    was = records.load(moved.paths, ID)
    count, ended = 1, kill_at(moved, "calls/1", ("resize", ID))
    while ended.status == -signal.SIGKILL:
        whole(moved)
        count += 1
        ended = kill_at(moved, f"calls/{count}", ("resize", ID))
    assert ended.status == 0, ended
    assert_lives(moved, digest)
    assert records.load(moved.paths, ID).move == was.move + 1


@pytest.mark.chaos
def test_an_archive_damaged_before_the_old_sandbox_goes_is_taken_anew(moved: House) -> None:
    digest = state_of(moved, "resize")
    before = set(moved.paths.backups(ID).iterdir())
    killed = kill_at(moved, "resize/recheck/before", ("resize", ID))
    assert killed.status == -signal.SIGKILL, killed
    (folder,) = set(moved.paths.backups(ID).iterdir()) - before
    tar = folder / "files.tar"
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 1
    tar.write_bytes(data)
    with pytest.raises(BackupDamaged):
        disk.rehash(folder, disk.load(folder))
    again = moved.troupe("resize", ID)
    assert again.status == 0, again
    disk.rehash(folder, disk.load(folder))
    assert_lives(moved, digest)
