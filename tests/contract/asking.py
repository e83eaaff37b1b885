"""What the tests of sandboxes ask them in one word."""

from __future__ import annotations

import pytest

from tests.contract.conftest import House
from troupe_tasks.sandbox.protocol import Ran, State


def run(house: House, sandbox_id: str, *argv: str, stdin: bytes = b"", deadline_s: float = 30) -> Ran:
    return house.driver.run(sandbox_id, argv, stdin=stdin, deadline_s=deadline_s)


def python(house: House, sandbox_id: str, code: str, *, deadline_s: float = 30) -> Ran:
    return run(house, sandbox_id, "/usr/bin/python3", "-I", "-S", "-c", code, deadline_s=deadline_s)


def state(house: House, sandbox_id: str) -> State:
    info = house.driver.list().find(sandbox_id)
    return State.MISSING if info is None else info.state


def binds(house: House, resource: str) -> None:
    report = next(report for report in house.driver.limits() if report.resource == resource)
    if not report.binds:
        pytest.skip(f"{resource} is not limited here: {report.how}")
