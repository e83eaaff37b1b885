"""The house that all integration tests share: the real image, the real gVisor, built once by the real code."""

from __future__ import annotations

import compileall
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.house import House, furnish
from troupe_tasks.errors import NotReady
from troupe_tasks.host import apt
from troupe_tasks.kits import image, local
from troupe_tasks.kits.model import Kit
from troupe_tasks.paths import Paths


@pytest.fixture(scope="session")
def house() -> Iterator[House]:
    """Yield a house that can create agents at once; the image stays for next time in a folder TROUPE_TEST_HOME."""
    kept = os.environ.get("TROUPE_TEST_HOME")
    home = Path(kept).resolve() if kept else Path(tempfile.mkdtemp(prefix="troupe-house-"))
    code = Path(tempfile.mkdtemp(prefix="troupe-code-"))
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        furnish(code)
        compileall.compile_dir(code / "troupe_tasks", quiet=2)
        house = House(home, code)
        _prepare(house.paths, code / "kits")
        yield house
        house.forget()
    finally:
        shutil.rmtree(code)
        if not kept:
            shutil.rmtree(home)


def _prepare(paths: Paths, kits: Path) -> None:
    # Of an earlier run: the checkout's kits may have changed since.
    shutil.rmtree(paths.kits, ignore_errors=True)
    try:
        apt.ensure_runsc(paths, print)
        hermes, probe = local.find("hermes", kits), local.find("probe", kits)
        built = image.ensure_image(hermes, paths, print)
        _share(hermes, probe, built, paths)
        House(paths.data.parents[2], kits.parent).rooms.driver().isolation()
    except NotReady as error:
        pytest.skip(f"this machine can't run agents: {error}")


def _share(hermes: Kit, probe: Kit, built: image.Image, paths: Paths) -> None:
    if image.find_image(probe, paths) is not None:
        return
    assert image.inputs_digest(probe) == built.digest, (
        "tests/kits/probe/kit.toml: [image] is not that of kits/hermes"
    )
    home = built.path.parent
    name = home.name.replace(f"{hermes.name}-{hermes.version}-", f"{probe.name}-{probe.version}-", 1)
    shutil.copytree(home, home.with_name(name), symlinks=True, copy_function=os.link)


@pytest.fixture
def swept(house: House) -> Iterator[House]:
    """Yield the house, and delete every agent that the test leaves."""
    yield house
    for record in house.rooms.records():
        house.delete(record.name)
