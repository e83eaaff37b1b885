"""What the services are told of a gateway."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import pytest

from troupe_tasks.operations import gateway
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.services import daemon
from troupe_tasks.services.protocol import Service, Services


@dataclass
class Keeper:
    """Services that note what they are told."""

    added: list[Service] = field(default_factory=list)

    def add(self, service: Service) -> None:
        self.added.append(service)

    def start(self, names: Iterable[str]) -> None:
        assert list(names) == [self.added[-1].name]


@pytest.mark.parametrize(("driver", "stands_on"), [("sbx", (daemon.UNIT,)), ("capsule", ())])
def test_a_gateway_of_sbx_stands_on_the_daemons_unit(driver: str, stands_on: tuple[str, ...]) -> None:
    house, keeper = House(Paths.from_env()), Keeper()
    house.__dict__["services"] = cast("Services", keeper)
    record = Record(
        id="jane", name="jane", kit=KitPin(type="hermes", version="0.1.0"), driver=driver, isolation="kvm", wanted="up",
        rehearsal=True, key_tier="none", sizes=Sizes(cpus=1, memory_mib=512, storage_mib=512), created_at="now",
    )  # fmt: skip
    gateway.start(house, record)
    (added,) = keeper.added
    assert added.stands_on == stands_on
