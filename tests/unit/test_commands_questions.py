"""How its sandbox keeps an agent in is asked about where that is less than a virtual machine."""

from __future__ import annotations

from typing import Any

import pytest

from troupe_tasks import config
from troupe_tasks.commands.questions import accept_isolation
from troupe_tasks.errors import NotConfirmed
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Isolation


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the machine both drivers, and nobody at its terminal."""

    class Driver:
        def __init__(self, name: str) -> None:
            self.name = name

        def isolation(self) -> Isolation:
            return Isolation.KVM if self.name == "sbx" else Isolation.GVISOR

    def opened(name: str, paths: Paths, **_more: Any) -> Driver:
        return Driver(name)

    monkeypatch.setattr(drivers, "open_driver", opened)
    monkeypatch.setattr("troupe_tasks.commands.output.somebody_is_there", lambda: False)


def test_a_virtual_machine_is_not_asked_about() -> None:
    accept_isolation(House(Paths.from_env(), wanted="sbx"))


def test_a_capsule_is_unless_the_setting_says_yes_to_it() -> None:
    house = House(Paths.from_env(), wanted="capsule")
    with pytest.raises(NotConfirmed):
        accept_isolation(house)
    config.put(house.paths, "driver", "sbx")
    with pytest.raises(NotConfirmed):
        accept_isolation(house)
    config.put(house.paths, "driver", "capsule")
    accept_isolation(house)
