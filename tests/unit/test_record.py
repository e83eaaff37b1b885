"""Records: what is written is what is read, and nothing else is taken for one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from troupe_tasks import record
from troupe_tasks.errors import NotFound, StateUnreadable
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, SelfTest, Sizes
from troupe_tasks.sandbox import drivers


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.from_env({"HOME": str(tmp_path)})


def one(agent_id: str = "mr-doyle", **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "id": agent_id,
        "name": "Mr. Doyle",
        "kit": KitPin(type="hermes", version="1.0.0"),
        "driver": "capsule",
        "isolation": "gVisor",
        "rehearsal": True,
        "key_tier": "none",
        "sizes": Sizes(cpus=1, memory_mib=1024, storage_mib=10240),
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Record(**{**fields, **changes})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(), cpus=st.integers(1, 4096), memory_mib=st.integers(64, 2**40))
def test_a_record_comes_back_as_it_was(paths: Paths, name: str, cpus: int, memory_mib: int) -> None:
    saved = one(name=name, sizes=Sizes(cpus=cpus, memory_mib=memory_mib, storage_mib=64))
    record.save(paths, saved)
    assert record.load(paths, saved.id) == saved
    assert paths.record(saved.id).stat().st_mode & 0o777 == 0o600


def test_no_agent_is_not_found(paths: Paths) -> None:
    assert record.find(paths, "nobody") is None
    assert record.load_all(paths) == ([], [])
    with pytest.raises(NotFound, match="no agent nobody"):
        record.load(paths, "nobody")


def test_all_agents_come_by_id(paths: Paths) -> None:
    for agent_id in ("b", "a", "c-d"):
        record.save(paths, one(agent_id))
    (paths.agents / "half-made").mkdir()
    (paths.agents / "file").write_bytes(b"")
    recorded, unreadable = record.load_all(paths)
    assert [found.id for found in recorded] == ["a", "b", "c-d"]
    assert unreadable == []


def test_a_record_that_does_not_read_hides_no_other(paths: Paths) -> None:
    for agent_id in ("a", "b", "c"):
        record.save(paths, one(agent_id))
    paths.record("b").write_bytes(b"{")
    shutil.copytree(paths.agent("c"), paths.agents / "c.copy")  # no agent has such an ID
    recorded, unreadable = record.load_all(paths)
    assert [found.id for found in recorded] == ["a", "c"]
    assert [(found.id, found.error.hint) for found in unreadable] == [
        (
            "b",
            "Put the file back from a copy of yours, or give the agent up: `troupe delete b`.",
        )
    ]


def test_the_record_of_a_newer_troupe_says_so(paths: Paths) -> None:
    record.save(paths, one())
    path = paths.record("mr-doyle")
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2, "more": {}'))
    with pytest.raises(StateUnreadable, match=r"source\.json was written by a newer troupe") as caught:
        record.load(paths, "mr-doyle")
    assert caught.value.cause == "it has format 2, and this troupe reads format 1"
    assert "`troupe update`" in caught.value.hint


def test_every_driver_that_there_is_can_be_recorded_and_no_other(paths: Paths) -> None:
    for name in drivers.NAMES:
        record.save(paths, one(driver=name))
        assert record.load(paths, "mr-doyle").driver == name
    path = paths.record("mr-doyle")
    path.write_bytes(path.read_bytes().replace(f'"{drivers.NAMES[-1]}"'.encode(), b'"vm"'))
    with pytest.raises(StateUnreadable, match="driver"):
        record.load(paths, "mr-doyle")


def test_a_sandbox_tells_its_agent_and_which_of_its_sandboxes_it_is() -> None:
    for move in (0, 1, 12):
        sandbox = record.sandbox_of("mr-doyle", move)
        assert (record.agent_of(sandbox), record.move_of(sandbox)) == ("mr-doyle", move)
    assert record.move_of("mr-doyle--odd") == 0


@pytest.mark.parametrize(
    "damage",
    [b"", b"null", b"[]", b"{}", b"\xff", b'{"format": 0}', b'{"format": "2"}', b"{" * 5000],
)
def test_a_damaged_record_is_told_with_its_place(paths: Paths, damage: bytes) -> None:
    record.save(paths, one())
    paths.record("mr-doyle").write_bytes(damage)
    with pytest.raises(StateUnreadable, match=r"source\.json is not what troupe writes"):
        record.load(paths, "mr-doyle")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"cpus": 1', b'"cpus": "1"'),
        (b'"cpus": 1', b'"cpus": 0'),
        (b'"1.0.0"', b'"latest"'),
        (b'"1.0.0"', '"\u0661.0.0"'.encode()),
        (b'"key_tier": "none"', b'"key_tier": "weak"'),
        (b'"wanted": "up"', b'"wanted": "up", "more": 1'),
        (b'"rehearsal": true', b'"rehearsal": 1'),
    ],
)
def test_a_field_out_of_form_is_told(paths: Paths, old: bytes, new: bytes) -> None:
    record.save(paths, one())
    path = paths.record("mr-doyle")
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(StateUnreadable):
        record.load(paths, "mr-doyle")


def test_the_record_of_another_agent_is_refused(paths: Paths) -> None:
    record.save(paths, one("a"))
    paths.agent("b").mkdir()
    paths.record("b").write_bytes(paths.record("a").read_bytes())
    with pytest.raises(StateUnreadable, match="another agent, a"):
        record.load(paths, "b")


def test_a_self_test_is_kept_beside_the_record(paths: Paths) -> None:
    record.save(paths, one())
    assert record.last_self_test(paths, "mr-doyle") is None
    result = SelfTest(at="2026-01-01T00:00:00+00:00", passed=False, cause="401", reply="\x1b[31m", model="m")
    record.save_self_test(paths, "mr-doyle", result)
    assert record.last_self_test(paths, "mr-doyle") == result
    (paths.agent("mr-doyle") / "self-test.json").write_bytes(b"{}")
    with pytest.raises(StateUnreadable):
        record.last_self_test(paths, "mr-doyle")


def test_what_a_sandbox_can_fill_is_bounded() -> None:
    with pytest.raises(ValidationError):
        SelfTest(at="", passed=True, reply="x" * 4001)


def test_a_record_is_never_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        one().name = "other"  # type: ignore[misc]
