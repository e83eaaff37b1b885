"""After a machine restart: the sandbox daemon is there again, before anybody has logged in."""

from __future__ import annotations

from tests.guest.inside import help as h
from tests.guest.inside import sbx


def test_the_daemon_is_back_and_is_the_users() -> None:
    starts = (sbx.STATE / "starts").read_text().splitlines()
    h.until(lambda: sbx.fact("ActiveState") == "active")
    assert sbx.answers()
    assert set(starts) == {sbx.USER}
    assert sbx.fact("NRestarts") == "0"
