"""A real Hermes agent that is resized, backed up, restored, upgraded and reset, and keeps what it should."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.house import House, kits_kept, wait_until
from troupe_tasks import record as records
from troupe_tasks.kits import pins

NAME, ID = "Mr. Moves", "mr-moves"
SKILL = "/state/hermes/skills/when-the-network-refuses/SKILL.md"
SAYS = "Rehearsal reply to"
SESSIONS = """\
import sqlite3
database = sqlite3.connect("/state/hermes/state.db")
print(database.execute("select count(*) from messages where content like '%the blue door%'").fetchone()[0])
"""

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def mover(house: House) -> Iterator[House]:
    """Yield the house with one real Hermes agent that has said something and made something."""
    with kits_kept(house):
        yield from _mover(house)


def _mover(house: House) -> Iterator[House]:
    house.create(NAME, "hermes")
    assert house.troupe("config", "set", "reserve", "1").status == 0
    assert house.troupe("chat", ID, "remember the blue door").status == 0
    inside(house, "echo report > /workspace/report.md; chmod 0640 /workspace/report.md")
    yield house
    house.delete(NAME)


def inside(house: House, command: str) -> str:
    where = records.load(house.paths, ID).sandbox
    ran = house.rooms.driver().run(where, ["sh", "-c", command], deadline_s=60)
    assert ran.status == 0, ran
    return ran.stdout.decode()


def remembers(house: House) -> bool:
    where = records.load(house.paths, ID).sandbox
    ran = house.rooms.driver().run(where, ["/usr/bin/python3", "-c", SESSIONS], deadline_s=60)
    assert ran.status == 0, ran
    return int(ran.stdout) > 0


def state(house: House) -> str:
    found = json.loads(house.troupe("list", "--json").out)
    (agent,) = [one for one in found if one["id"] == ID]
    return str(agent["state"])


def version(house: House, new: str, *, command: str = "") -> None:
    """Give the checkout's kit a new version, with a changed seed and, if asked, a self-test that can't work."""
    kit = house.code / "kits" / "hermes" / "kit.toml"
    lines = kit.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("version ="):
            lines[number] = f'version = "{new}"'
        if line.startswith("self_test =") and command:
            lines[number] = f'self_test = ["{command}"]'
    kit.write_text("\n".join(lines) + "\n", encoding="utf-8")
    seed = house.code / "kits" / "hermes" / "seeds" / "skills" / "when-the-network-refuses" / "SKILL.md"
    seed.write_text(f"{seed.read_text(encoding='utf-8')}\nAs of {new}.\n", encoding="utf-8")


def test_resized_it_has_all_it_had(mover: House) -> None:
    done = mover.troupe("resize", ID, "--memory", "2.5", "--storage", "11")
    assert done.status == 0, done
    assert "2.5 GiB memory, 11 GiB disk" in done.out
    assert SAYS in done.out
    wait_until(lambda: state(mover) == "running")
    assert inside(mover, "cat /workspace/report.md; stat -c %a /workspace/report.md") == "report\n640\n"
    assert remembers(mover)
    mib = int(inside(mover, "df -m --output=size /workspace | tail -1"))
    assert mib > 10 * 1024
    assert mover.troupe("chat", ID, "still there?").status == 0
    refused = mover.troupe("resize", ID, "--storage", "5")
    assert refused.status == 2, refused
    assert "only grows" in refused.err
    assert state(mover) == "running"
    assert json.loads(mover.troupe("status", ID, "--json").out)["agent"]["unfinished"] is None


def test_no_room_above_the_reserve_is_told_before_anything_stops(mover: House) -> None:
    assert mover.troupe("config", "set", "reserve", "900000").status == 0
    refused = mover.troupe("resize", ID)
    assert refused.status == 3, refused
    assert "reserve" in refused.err
    assert mover.troupe("config", "set", "reserve", "1").status == 0
    assert state(mover) == "running"


def test_backed_up_and_restored(mover: House) -> None:
    made = mover.troupe("backup", ID, "--json")
    assert made.status == 0, made
    name = json.loads(made.out)["name"]
    folder = mover.paths.backups(ID) / name
    assert {path.name for path in folder.iterdir()} == {
        "archive.json",
        "files.tar",
        "hermes.zip",
        "proof.json",
    }
    assert "SOUL.md" in zipfile.ZipFile(folder / "hermes.zip").namelist()
    inside(mover, "rm /workspace/report.md; echo new > /workspace/new.md")
    not_asked = mover.troupe("restore", ID)
    assert not_asked.status == 3, not_asked
    done = mover.troupe("restore", ID, "--yes")
    assert done.status == 0, done
    assert inside(mover, "ls /workspace") == "report.md\n"
    assert remembers(mover)
    kept = json.loads(mover.troupe("backup", "list", ID, "--json").out)
    assert kept[-1]["name"].endswith("-restore")


def test_a_drill_is_seen_in_the_status(mover: House) -> None:
    before = json.loads(mover.troupe("status", ID, "--json").out)["last_proved_restore"]
    done = mover.troupe("backup", ID, "--drill")
    assert done.status == 0, done
    after = json.loads(mover.troupe("status", ID, "--json").out)["last_proved_restore"]
    assert after > before
    assert after in mover.troupe("status", ID).out


def test_what_is_pruned_is_gone_and_the_newest_stay(mover: House) -> None:
    assert mover.troupe("backup", "prune", ID, "--keep", "0").status == 2
    newest = json.loads(mover.troupe("backup", "list", ID, "--json").out)[-1]["name"]
    done = mover.troupe("backup", "prune", ID, "--keep", "1")
    assert done.status == 0, done
    left = [one["name"] for one in json.loads(mover.troupe("backup", "list", ID, "--json").out)]
    assert left[-1] == newest
    assert len(left) <= 2
    assert sorted(path.name for path in mover.paths.backups(ID).iterdir()) == left


@pytest.mark.chaos
def test_a_lost_sandbox_is_brought_back_from_a_backup(mover: House) -> None:
    assert mover.troupe("backup", ID).status == 0
    assert mover.troupe("stop", ID).status == 0
    where = records.load(mover.paths, ID).sandbox
    mover.rooms.driver().remove(where)
    assert state(mover) == "missing"
    assert mover.troupe("resize", ID).status == 5
    done = mover.troupe("restore", ID, "--yes")
    assert done.status == 0, done
    assert mover.troupe("start", ID).status == 0
    assert "report.md" in inside(mover, "ls /workspace")
    assert remembers(mover)


def test_an_upgrade_keeps_edits_and_everything_else(mover: House) -> None:
    assert "is left as it is" in mover.troupe("upgrade", ID).out
    inside(mover, f"echo mine >> {SKILL}")
    was = records.load(mover.paths, ID).kit.version
    version(mover, "0.90.0")
    done = mover.troupe("upgrade", ID)
    assert done.status == 0, done
    kept = Path(mover.home, ".local/state/live-apply", ID, f"{was}-to-0.90.0")
    edit = kept / "skills/when-the-network-refuses/SKILL.md"
    assert edit.read_text(encoding="utf-8").endswith("mine\n")
    assert str(kept) in done.out
    assert "As of 0.90.0." in inside(mover, f"cat {SKILL}")
    assert records.load(mover.paths, ID).kit.version == "0.90.0"
    assert remembers(mover)


def test_an_upgrade_that_gets_no_answer_goes_back_by_itself(mover: House) -> None:
    inside(mover, f"echo mine again >> {SKILL}")
    version(mover, "0.91.0", command="/bin/false")
    done = mover.troupe("upgrade", ID)
    assert done.status == 5, done
    assert "goes on where and as it was" in done.err
    record = records.load(mover.paths, ID)
    assert record.kit.version == "0.90.0"
    assert "mine again" in inside(mover, f"cat {SKILL}")
    wait_until(lambda: state(mover) == "running")
    assert mover.troupe("chat", ID, "all well?").status == 0
    assert [path.name for path in mover.paths.sandboxes.iterdir() if path.name.startswith(ID)] == [
        record.sandbox
    ]


def test_a_new_major_and_a_changed_manifest_are_refused(mover: House) -> None:
    version(mover, "1.0.0")
    done = mover.troupe("upgrade", ID)
    assert done.status == 3, done
    assert "Create one anew" in done.err
    version(mover, "0.92.0")
    manifest = mover.code / "kits" / "hermes" / "slack-manifest.json"
    manifest.write_text("{}", encoding="utf-8")
    done = mover.troupe("upgrade", ID)
    manifest.unlink()
    assert done.status == 3, done
    assert "manifest" in done.err
    assert state(mover) == "running"


def test_a_reset_starts_anew(mover: House) -> None:
    checked = mover.troupe("reset", ID, "--check", "--json")
    assert checked.status == 0, checked
    steps = json.loads(checked.out)["steps"]
    assert mover.troupe("reset", ID).status == 3
    was = records.load(mover.paths, ID).kit
    backups = mover.troupe("backup", "list", ID, "--json").out
    inside(mover, f"echo mine >> {SKILL}")
    done = mover.troupe("reset", ID, "--yes")
    assert done.status == 0, done
    assert [line.removeprefix("- ") for line in done.err.splitlines() if line.startswith("- ")] == steps
    assert inside(mover, "ls -A /workspace") == ""
    assert not remembers(mover)
    assert records.load(mover.paths, ID).kit == was
    seed = pins.place(mover.paths, was.type, was.version) / "seeds" / SKILL.removeprefix("/state/hermes/")
    assert inside(mover, f"cat {SKILL}") == seed.read_text(encoding="utf-8")
    assert mover.troupe("backup", "list", ID, "--json").out == backups
