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
    """Yield a house that can create agents at once; the image stays for next time in a folder TROUPE_TEST_HOME.

    Workers that run side by side have a house each, which links to the one image.
    """
    kept = os.environ.get("TROUPE_TEST_HOME")
    stock = Path(kept).resolve() if kept else Path(tempfile.mkdtemp(prefix="troupe-house-"))
    home = stock / "houses" / os.environ.get("PYTEST_XDIST_WORKER", "only")
    code = Path(tempfile.mkdtemp(prefix="troupe-code-"))
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        stock.chmod(0o700)
        furnish(code)
        compileall.compile_dir(code / "troupe_tasks", quiet=2)
        house = House(home, code)
        _prepare(house.paths, code / "kits", stock=Paths.from_env({"HOME": str(stock)}))
        yield house
        house.forget()
    finally:
        shutil.rmtree(code)
        if not kept:
            shutil.rmtree(stock)


def _prepare(paths: Paths, kits: Path, *, stock: Paths) -> None:
    # Of an earlier run: the checkout's kits may have changed since, and it may have been killed.
    for folder in (paths.config, paths.kits, paths.images, paths.tools):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        apt.ensure_runsc(stock, print)
        hermes, probe = local.find("hermes", kits), local.find("probe", kits)
        built = image.ensure_image(hermes, stock, print)
        assert image.inputs_digest(probe) == built.digest, (
            "tests/kits/probe/kit.toml: [image] is not that of kits/hermes"
        )
        if stock.tools.is_dir():  # else this machine's own package has it
            shutil.copytree(stock.tools, paths.tools, symlinks=True, copy_function=os.link)
        for kit in (hermes, probe):
            share(built, kit, paths)
        House(paths.data.parents[2], kits.parent).rooms.driver().isolation()
    except NotReady as error:
        pytest.skip(f"this machine can't run agents: {error}")


def share(built: image.Image, kit: Kit, paths: Paths) -> None:
    """Give a version of a kit the image that there is, by links, so that none is built for it."""
    home = paths.images / f"{kit.name}-{built.digest[:16]}"
    shutil.copytree(built.path.parent, home, symlinks=True, copy_function=os.link)


@pytest.fixture
def swept(house: House) -> Iterator[House]:
    """Yield the house, and delete every agent that the test leaves."""
    yield house
    for record in house.rooms.records():
        house.delete(record.name)
