"""No sandbox is taken for another one, however alike their IDs are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.conftest import House
from troupe_tasks.errors import TroupeError

pytestmark = pytest.mark.own_sbx


def test_one_whose_id_begins_anothers_is_not_taken_for_it(house: House, fresh: Callable[[], str]) -> None:
    short = fresh()
    long = f"{short}-2"
    house.started(short)
    house.started(long)
    try:
        run = house.driver.run
        run(long, ["sh", "-c", "echo mine > /tmp/here"], deadline_s=20)
        house.driver.stop(short, deadline_s=5)
        with pytest.raises(TroupeError):
            run(short, ["true"], deadline_s=20)
        house.driver.stop(short, deadline_s=5)
        house.driver.remove(short)
        assert run(long, ["cat", "/tmp/here"], deadline_s=20).stdout == b"mine\n"
    finally:
        house.driver.remove(long)
