"""Fixtures of the contract suite: every engine that this machine can run, each missing one with its reason."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests import own_sbx
from tests.contract.standin_sbx import sbx as standin
from troupe_tasks.errors import NotReady
from troupe_tasks.host import apt
from troupe_tasks.kits import image as kit_image
from troupe_tasks.kits import local
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.drivers import open_driver
from troupe_tasks.sandbox.protocol import Isolation, Sandboxes, SandboxSpec, Sizes
from troupe_tasks.sandbox.sbx import template
from troupe_tasks.sandbox.sbx.driver import Sbx

SMALL = Sizes(cpus=1, memory_mib=256, storage_mib=64, processes=64, open_files=256)
ONE = "calm"  # the sandbox of the sbx driver's own tests
ROOMY = Sizes(cpus=2, memory_mib=512, storage_mib=512, processes=64, open_files=256)


class House:
    """One driver on folders of its own, and the sandboxes made in it; `opening` opens it in another process.

    `kernel` is whose kernel a sandbox meets.
    """

    small, roomy = SMALL, ROOMY

    def __init__(self, driver: Sandboxes, paths: Paths, image: Path) -> None:
        self.driver, self.paths, self.image = driver, paths, image
        self.kernel = driver.isolation()
        self.opening = f"open_driver('capsule', Paths.from_env(), isolation=Isolation('{self.kernel.value}'))"

    def only(self, *names: str, why: str) -> None:
        """Skip a test that can't be put to another driver."""
        if self.driver.name not in names:
            pytest.skip(f"{self.driver.name}: {why}")

    def spec(self, sandbox_id: str, *, sizes: Sizes | None = None) -> SandboxSpec:
        return SandboxSpec(
            id=sandbox_id, sizes=sizes or self.small, image=self.image, egress=self.paths.egress(sandbox_id) / "socket",
            env={"TROUPE_SAMPLE": "from the spec"},
        )  # fmt: skip

    def spare(self, shared: str, fresh: Callable[[], str]) -> str:
        """Return a sandbox that may be used up for a while: one of its own where one is made quickly."""
        return self.started(fresh())

    def started(self, sandbox_id: str, *, sizes: Sizes | None = None) -> str:
        self.driver.create(self.spec(sandbox_id, sizes=sizes))
        self.driver.start(sandbox_id)
        return sandbox_id


@pytest.fixture(scope="session")
def stock() -> Iterator[Paths]:
    """Yield folders with gVisor and the image of the kit hermes, kept for next time in TROUPE_TEST_HOME."""
    kept = os.environ.get("TROUPE_TEST_HOME")
    home = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="troupe-stock-"))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    yield Paths.from_env({"HOME": str(home)})
    if not kept:
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> Path:
    """Return a root file system; the run as an ordinary user is given the one that root built."""
    if given := os.environ.get("TROUPE_TEST_ROOTFS"):
        return Path(given)
    paths: Paths = request.getfixturevalue("stock")
    try:
        return kit_image.ensure_image(local.find("hermes"), paths, print).path
    except NotReady as error:
        pytest.skip(f"this machine can't build an image: {error}")


@pytest.fixture(scope="session")
def runsc(request: pytest.FixtureRequest) -> Path | None:
    """Return a gVisor, or None where there is none to be had."""
    if given := os.environ.get("TROUPE_TEST_RUNSC"):
        return Path(given)
    paths: Paths = request.getfixturevalue("stock")
    with suppress(NotReady):
        return apt.ensure_runsc(paths, print).resolve()
    return None


class Docker(House):
    """The sbx driver, on a stand-in for Docker's program."""

    small = SMALL.model_copy(update={"memory_mib": 512, "docker_mib": 512})  # the least that sbx gives
    roomy = ROOMY.model_copy(update={"docker_mib": 512})

    def __init__(self, paths: Paths, image: Path, home: Path, runsc: Path) -> None:
        self.standin = standin.install(home, runsc)
        # What troupe does once, and a test of its own does here: having the image among sbx's templates.
        standin.Place(self.standin).put("templates", {template.tag(image): str(image)})
        standin.Place(self.standin).put("policy", {"default": "balanced"})
        self.driver, self.paths, self.image = Sbx(paths), paths, image
        self.opening = "open_driver('sbx', Paths.from_env())"
        self.kernel = Isolation.GVISOR  # the stand-in's

    def spare(self, shared: str, fresh: Callable[[], str]) -> str:
        """Return the shared one: each test gives back what it took."""
        return shared

    @contextmanager
    def ill(self, **how: object) -> Iterator[None]:
        """Let the stand-in misbehave."""
        standin.Place(self.standin).put("misbehave", how)
        try:
            yield
        finally:
            standin.Place(self.standin).put("misbehave", {})

    def calls(self) -> list[list[str]]:
        """Return the words of every call so far."""
        lines = (self.standin / "calls.log").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["argv"] for line in lines]


@contextmanager
def docker(image: Path, runsc: Path | None) -> Iterator[Docker]:
    """Yield a house of the sbx driver."""
    if runsc is None or os.geteuid() != 0:
        pytest.skip("the stand-in for sbx needs gVisor, and root for its two users inside")
    home = Path(tempfile.mkdtemp(prefix="troupe-docker-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
        made = Docker(Paths.from_env({"HOME": str(home)}), image, home, runsc)
        yield made
        for info in made.driver.list().sandboxes:
            if info.id is not None:
                made.driver.remove(info.id)
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def dock(image: Path, runsc: Path | None) -> Iterator[Docker]:
    """Yield a house of the sbx driver with one sandbox, made and started, that holds a word."""
    with docker(image, runsc) as made:
        made.started(ONE)
        made.driver.run(ONE, ["sh", "-c", "echo kept >/state/word"], deadline_s=30)
        yield made


class OwnSbx(House):
    """The sbx driver, on this machine's own sbx: a sandbox's root disk has the image on it as well."""

    small = SMALL.model_copy(update={"memory_mib": 512, "storage_mib": 4096, "docker_mib": 512})
    roomy = ROOMY.model_copy(update={"storage_mib": 8192, "docker_mib": 512})

    def __init__(self, paths: Paths, image: Path) -> None:
        self.driver, self.paths, self.image = Sbx(paths), paths, image
        self.opening = "open_driver('sbx', Paths.from_env())"
        self.kernel = Isolation.KVM

    def spare(self, shared: str, fresh: Callable[[], str]) -> str:
        """Return the shared one: each test gives back what it took."""
        return shared


@contextmanager
def own_docker(image: Path) -> Iterator[House]:
    """Yield a house of the sbx driver whose sbx is the operator's, and leave that as it was."""
    home = Path(tempfile.mkdtemp(prefix="troupe-own-sbx-"))
    sbx = own_sbx.wrapped(home / "bin")
    with pytest.MonkeyPatch.context() as patch, sbx.left_as_it_was():
        patch.setenv("PATH", f"{sbx.program.parent}:{os.environ['PATH']}")
        made = OwnSbx(Paths.from_env({"HOME": str(home)}), image)
        yield made
        for info in made.driver.list().sandboxes:
            if info.id is not None:
                made.driver.remove(info.id)
    shutil.rmtree(home)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Put a test of a house to every engine, or to the machine's own sbx alone."""
    if "house" in metafunc.fixturenames:
        houses = ["own-sbx"] if own_sbx.is_asked(metafunc.config) else ["gvisor", "namespaces", "sbx"]
        metafunc.parametrize("house", houses, indirect=True, scope="session")


@pytest.fixture(scope="session")
def house(request: pytest.FixtureRequest, image: Path, runsc: Path | None) -> Iterator[House]:
    if request.param in {"sbx", "own-sbx"}:
        with docker(image, runsc) if request.param == "sbx" else own_docker(image) as made:
            yield made
        return
    home = Path(tempfile.mkdtemp(prefix="troupe-contract-"))
    paths = Paths.from_env({"HOME": str(home)})
    if runsc is not None:
        paths.tools.mkdir(parents=True, mode=0o700)
        (paths.tools / "runsc").symlink_to(runsc)
    driver = open_driver("capsule", paths, isolation=Isolation(request.param))
    try:
        driver.isolation()
    except NotReady as error:
        shutil.rmtree(home)
        pytest.skip(f"{request.param}: {error}")
    yield House(driver, paths, image)
    for info in driver.list().sandboxes:
        if info.id is not None:
            driver.remove(info.id)
    shutil.rmtree(home)


@pytest.fixture
def fresh(house: House) -> Iterator[Callable[[], str]]:
    """Return a maker of IDs whose sandboxes are removed after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(f"fresh-{len(made)}-{os.urandom(3).hex()}")
        return made[-1]

    yield make
    for sandbox_id in made:
        house.driver.remove(sandbox_id)


@pytest.fixture(scope="session")
def shared(house: House) -> str:
    """Return one running sandbox for the tests that leave it as it was."""
    return house.started("shared")


@pytest.fixture
def echo_broker(house: House, shared: str) -> Iterator[None]:
    """Stand in for the broker: say back what comes, and `bye` once the other side has ended its part."""
    folder = house.paths.egress(shared) / "socket"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(folder / "broker.sock"))
    (folder / "broker.sock").chmod(0o666)
    server.listen(64)

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(65536):
                client.sendall(data)
            client.sendall(b"bye")

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)
    (folder / "broker.sock").unlink()
