"""Remove the image of a kit version that no agent has any more, and what drivers have made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from troupe_tasks import record as records
from troupe_tasks.errors import TroupeError
from troupe_tasks.kits import image, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations.house import House


def remove_unused(house: House, kit: Kit, *, told: Callable[[str], None]) -> bool:
    """Remove a kit version's image unless an agent uses it, and tell whether it was removed.

    It only takes room: whatever speaks against it (an agent's record that does not read) is told, and it stays.
    """

    def let_go(root: Path) -> None:
        for driver in house.drivers():
            try:
                driver.forget_image(root)
            except TroupeError as error:  # it takes room, and stands in nobody's way
                told(f"what {driver.name} made of the old image is left: {error}")

    try:
        recorded, unreadable = records.load_all(house.paths)
        if unreadable:  # it may be what the image is for
            raise unreadable[0].error
        in_use = [pins.pinned(house.paths, one.kit.type, one.kit.version) for one in recorded]
        return image.remove_unused(kit, house.paths, used_by=in_use, letting_go=let_go)
    except TroupeError as error:
        told(f"the image of {kit.name} {kit.version} is left: {error}")
        return False
