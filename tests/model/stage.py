"""A house whose operations, journal, files and archives are the real ones, and whose machine is played.

Sandboxes are folders (sandboxes.py); services and broker keep what they are told; the image is an empty folder; a
turn is answered or not, as a test says. An operation takes a tenth of a second.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest

from tests.model.faults import Faults
from tests.model.sandboxes import Folders
from troupe_tasks import budget, resources
from troupe_tasks import record as records
from troupe_tasks.egress.control import Broker
from troupe_tasks.errors import TroupeError
from troupe_tasks.kits import image, local
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations import (
    backup,
    create,
    delete,
    move,
    power,
    readiness,
    reset,
    room,
    upgrade,
    vault,
)
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.record import Record
from troupe_tasks.sandbox.protocol import Sandboxes
from troupe_tasks.services.protocol import Phase, Service, Services, ServiceState
from troupe_tasks.sizes import Wanted

NAME, ID = "Mr. Doyle", "mr-doyle"
MARKS = ("state/marks", "workspace/marks")


class Keeper:
    """Services that are what they are told to be; a gateway that starts brings its sandbox up."""

    def __init__(self, house: Stage) -> None:
        self._house, self._faults = house, house.faults
        self.up: dict[str, bool] = {}

    def add(self, service: Service) -> None:
        self._faults.step(f"add {service.name}")
        self.up.setdefault(service.name, False)

    def remove(self, name: str) -> None:
        self._faults.step(f"remove {name}")
        self.up.pop(name, None)

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            self._faults.step(f"start {name}")
            self.up[name] = True
            if name.startswith("gateway-"):
                record = records.find(self._house.paths, name.removeprefix("gateway-"))
                if record is not None and self._house.sandboxes.place(record.sandbox).is_dir():
                    self._house.sandboxes.running.add(record.sandbox)

    def stop(self, names: Iterable[str]) -> tuple[str, ...]:
        for name in names:
            self._faults.step(f"stop {name}")
            if name in self.up:
                self.up[name] = False
        return ()

    def states(self) -> dict[str, ServiceState]:
        return {name: ServiceState(Phase.RUNNING if up else Phase.STOPPED) for name, up in self.up.items()}

    def shutdown(self) -> None:
        self._faults.step("shutdown")
        self.up.clear()


class Answering:
    """A broker that is there."""

    def wait_until_ready(self, *, deadline_s: float) -> None:
        return

    def reload(self) -> None:
        return


@dataclass(frozen=True)
class Stage(House):
    """The house, its one agent's commands, and what may befall them."""

    root: Path
    faults: Faults
    sandboxes: Folders
    said: list[str] = field(default_factory=list)

    def driver(self, name: str | None = None, *, isolation: str | None = None) -> Sandboxes:
        """Return the one driver."""
        assert isolation in {None, "gvisor"}
        return cast("Sandboxes", self.sandboxes)

    @cached_property
    def services(self) -> Services:
        """Return the played services."""
        return cast("Services", Keeper(self))

    @cached_property
    def broker(self) -> Broker:
        """Return the played broker."""
        return cast("Broker", Answering())

    @property
    def keeper(self) -> Keeper:
        """Return the services as what they are."""
        return cast("Keeper", self.services)

    def record(self) -> Record:
        """Return the agent's record."""
        return records.load(self.paths, ID)

    def create(self) -> object:
        wish = create.Wish(
            id=ID, name=NAME, kit=local.find("toy"), rehearsal=True,
            wanted=Wanted(cpus=1, memory_mib=256, storage_mib=1024),
        )  # fmt: skip
        return create.create(self, wish, finish="troupe create", told=self.said.append)

    def stop(self) -> object:
        return power.stop(self, ID, told=self.said.append)

    def start(self) -> None:
        power.start(self, ID, over_budget=False, told=self.said.append)

    def reset(self) -> object:
        return reset.reset(self, ID, over_budget=False, told=self.said.append)

    def resize(self, memory_mib: int = 512) -> object:
        wanted = Wanted(cpus=1, memory_mib=memory_mib, storage_mib=1024)
        return move.resize(self, ID, wanted, finish="troupe resize", over_budget=False, told=self.said.append)

    def backup(self) -> object:
        return backup.backup(self, ID, over_budget=False, told=self.said.append)

    def drill(self) -> object:
        return backup.drill(self, ID, over_budget=False, told=self.said.append)

    def prune(self, keep: int = 1) -> list[str]:
        return vault.prune(self, ID, keep=keep)

    def restore(self, name: str = "") -> object:
        chosen = move.to_restore(self, ID, name)
        return move.restored(self, ID, chosen, over_budget=False, told=self.said.append)

    def upgrade(self) -> object:
        found = upgrade.newest(self, ID, login=cast("Any", None), told=self.said.append)
        if found is None:
            return None
        return upgrade.upgrade(self, ID, found, {}, over_budget=False, told=self.said.append)

    def delete(self) -> tuple[str, ...]:
        return delete.delete(self, ID, told=self.said.append)

    def restart_machine(self) -> None:
        """End all that runs; the services bring their gateways up again, with the sandboxes that these need."""
        self.sandboxes.running.clear()
        self.keeper.start([name for name, up in self.keeper.up.items() if up])

    def publish(self, version: str) -> None:
        """Have a newer version of the kit, with another seed."""
        write_kit(self.root / "kits" / "toy", version)


def staged(root: Path, patch: pytest.MonkeyPatch) -> Stage:
    """Return a stage below a folder, with the seams patched by which the machine would be reached."""
    home = root / "home"
    home.mkdir(parents=True, mode=0o700)
    write_kit(root / "kits" / "toy", "0.1.0")
    (root / "image").mkdir()
    patch.setattr(resources, "kits_dir", lambda: root / "kits")
    patch.setattr(
        image,
        "ensure_image",
        lambda kit, _paths, _told: image.Image(root / "image", image.inputs_digest(kit)),
    )
    patch.setattr(readiness, "refuse_unready", lambda _house: None)
    patch.setattr(room, "host", lambda *_: budget.Host(64, 1 << 20, 1 << 20))
    patch.setattr(vault, "free_mib", lambda _place: 1 << 20)
    faults = Faults(patch, home)
    sandboxes = Folders(root / "sandboxes", faults)
    return Stage(Paths.from_env({"HOME": str(home)}), root, faults, sandboxes, wanted="capsule")


_KIT = """\
name = "toy"
version = "{version}"
summary = "a toy"

[image]
suite = "trixie"
packages = ["python3"]
python = "3.13"

[sizes]
cpus = 1
memory_mib = 256
storage_mib = 1024

[commands]
chat = ["chat"]
turn = ["turn", "{{message}}"]
self_test = ["turn", "{{message}}", "{{usage}}"]
gateway = ["gateway"]
"""


def write_kit(folder: Path, version: str) -> Kit:
    """Write a version of the kit; each has other seeds, and the even ones one more."""
    (folder / "seeds/skills").mkdir(parents=True, exist_ok=True)
    (folder / "managed").mkdir(exist_ok=True)
    (folder / "kit.toml").write_text("egress = []\n" + _KIT.format(version=version), encoding="utf-8")
    (folder / "requirements.lock").write_text("hermes-agent==1.0\n", encoding="utf-8")
    (folder / "SOUL.md").write_text("You are a toy.\n", encoding="utf-8")
    (folder / "seeds/skills/one.md").write_text(f"one of {version}\n", encoding="utf-8")
    extra = folder / "seeds/skills/even.md"
    extra.unlink(missing_ok=True)
    if int(version.rpartition(".")[2]) % 2 == 0:
        extra.write_text(f"even of {version}\n", encoding="utf-8")
    return local.read(folder, name="toy")


def mark(sandbox: Path, word: str) -> str:
    """Put a tree of the agent's own into its folders, with what archives get wrong, and return its digest."""
    for top in MARKS:
        place = sandbox / top
        if place.exists():
            shutil.rmtree(place)
        (place / "deep/er").mkdir(parents=True)
        (place / "plain").write_text(word, encoding="utf-8")
        (place / "empty").touch()
        (place / os.fsdecode(b"odd\n\xff name")).write_bytes(word.encode() * 3)
        (place / ("n" * 150)).write_text(f"long {word}", encoding="utf-8")
        os.link(place / "plain", place / "deep/twin")
        os.symlink("../plain", place / "deep/link")
        os.symlink("/nowhere/" + "x" * 120, place / "dangling")
        with (place / "deep/er/sparse").open("wb") as file:
            file.write(word.encode())
            file.seek(200 << 10)
            file.write(word.encode())
            file.truncate(300 << 10)
        (place / "deep/script").write_text("#!/bin/sh\n", encoding="utf-8")
        (place / "deep/script").chmod(0o751)
        (place / "closed").mkdir(mode=0o500)
        os.utime(place / "empty", ns=(1, 1_234_567_890_123_456_789))
    return marks(sandbox)


def marks(sandbox: Path) -> str:
    """Return the digest of what mark() made: names, kinds, modes, times, links, twins and content; "" for nothing."""
    total = hashlib.sha256()
    found = False
    for top in MARKS:
        for folder, names, files in os.walk(os.fsencode(sandbox / top)):
            found = True
            names.sort()
            for name in sorted([b".", *names, *files]):
                total.update(_told(os.path.join(folder, name), os.fsencode(sandbox)))
    return total.hexdigest() if found else ""


def _told(path: bytes, root: bytes) -> bytes:
    status = os.lstat(path)
    link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else b""
    twins = status.st_nlink if stat.S_ISREG(status.st_mode) else 0
    mtime_ns = 0 if stat.S_ISLNK(status.st_mode) else status.st_mtime_ns
    content = b""
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).digest()
    return repr((os.path.relpath(path, root), status.st_mode, mtime_ns, link, twins, content)).encode()


def called(command: Callable[[], object]) -> BaseException | None:
    """Return what a command raised of troupe's own errors, or None; anything else is a fault of its own."""
    try:
        command()
    except TroupeError as error:
        return error
    return None
