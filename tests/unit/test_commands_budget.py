"""Over budget: asked once, before an operation on an agent begins, and never about one that has begun."""

from __future__ import annotations

import pytest

from troupe_tasks import budget
from troupe_tasks.budget import Verdict
from troupe_tasks.commands.budget import accepted_for
from troupe_tasks.errors import OverBudget
from troupe_tasks.journal import Journal
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths

ID = "jane"


def over() -> Verdict:
    host = budget.Host(cpu_threads=2, memory_mib=8192, disk_free_mib=100_000)
    need = budget.Need(driver="capsule", cpus=2, memory_mib=4096, disk_growth_mib=1000)
    other = budget.Running(
        id="other", name="Other", driver="capsule", up=True, cpus=2, memory_mib=4096, disk_growth_mib=0
    )  # fmt: skip
    found = budget.check(host, need, others=[other])
    assert found.over
    return found


def never() -> Verdict:
    raise AssertionError("it was asked about again")


def test_nobody_there_is_no() -> None:
    house = House(Paths.from_env())
    with pytest.raises(OverBudget):
        accepted_for(house, ID, over, force=False, question="Do it?")
    assert accepted_for(house, ID, over, force=True, question="Do it?")


def test_what_finishes_an_operation_is_not_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    house = House(Paths.from_env())
    Journal(house.paths, ID).open("resize", inputs={}, finish="troupe resize jane")
    assert not accepted_for(house, ID, never, force=False, question="Do it?")
    assert capsys.readouterr() == ("", "")
