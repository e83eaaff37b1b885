"""Kits go into a real registry and come back, pinned; what moved, what was cut and what is private is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.registries import TOKEN, a_kit, cut_off, needs_registry, nobody, registry, somebody
from troupe_tasks.errors import Refused, RegistryFailed, TroupeError, UsageError
from troupe_tasks.kits import local, oci, pins, publish, pull, pulled
from troupe_tasks.kits.registry import Place, Registry
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret

pytestmark = needs_registry
ROOT = Path(__file__).parents[2]

# A pull in a process of its own.
SETUP = (
    "import sys\n"
    "from troupe_tasks.kits import pull\n"
    "from troupe_tasks.kits.registry import Place, Registry\n"
    "from troupe_tasks.paths import Paths\n"
    "registry = Registry(Place.of(sys.argv[1]), None)\n"
)
PULL = "pull.bring(registry, pull.offer(registry, 'mime', 'latest'), Paths.from_env(), print)\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as place:
        yield place


@pytest.fixture
def place(running: str, tmp_path: Path) -> str:
    """Return a place of this test's own."""
    return f"{running}/{tmp_path.name.replace('_', '-').rstrip('-')}/kits"


@pytest.fixture
def paths() -> Paths:
    return Paths.from_env()


def silent(_text: str) -> None:
    pass


def at(place: str, login: Callable[[str], Secret] = nobody) -> Registry:
    return Registry(Place.of(place), login)


def put(folder: Path, place: str) -> publish.Published:
    return publish.publish(publish.packed(folder), at(place), silent)


def brought(place: str, paths: Paths, reference: str = "latest", kind: str = "mime") -> Path:
    found = pull.offer(at(place), kind, reference)
    assert found is not None
    pull.settled(at(place), found, paths)
    return pull.bring(at(place), found, paths, silent).folder


def left(paths: Paths) -> list[str]:
    return sorted(path.name for path in paths.kits.iterdir()) if paths.kits.is_dir() else []


def test_a_published_kit_is_pulled_as_it_was(tmp_path: Path, place: str, paths: Paths) -> None:
    source = a_kit(tmp_path)
    done = put(source, place)
    folder = brought(place, paths)
    assert folder == paths.kits / "mime-1.2.3"
    assert pins.content(folder) == pins.content(source)
    known = pulled.find(paths, "mime", "1.2.3")
    assert known is not None
    assert known.digest == done.artifact.digest
    assert left(paths) == ["mime-1.2.3", "mime-1.2.3.json"]


def test_the_kits_that_troupe_brings_can_be_published_and_pulled(place: str, paths: Paths) -> None:
    hermes = local.find("hermes")
    put(hermes.folder, place)
    folder = brought(place, paths, kind="hermes")
    assert pins.content(folder) == pins.content(hermes.folder)


def test_publishing_again_is_fine_and_another_kit_under_the_same_version_is_refused(
    tmp_path: Path, place: str
) -> None:
    first = put(a_kit(tmp_path), place)
    assert put(a_kit(tmp_path), place).artifact.digest == first.artifact.digest
    with pytest.raises(Refused, match=r"another mime 1\.2\.3"):
        put(a_kit(tmp_path, soul="be loud\n"), place)
    assert at(place).digest("mime", "1.2.3") == first.artifact.digest


def test_latest_names_the_newest_whatever_is_published_later(tmp_path: Path, place: str) -> None:
    for version, latest in (
        ("1.9.0", "1.9.0"),
        ("1.10.0", "1.10.0"),
        ("1.9.1", "1.10.0"),
        ("1.10.0", "1.10.0"),
    ):
        assert put(a_kit(tmp_path, version=version), place).latest == latest
    found = pull.offer(at(place), "mime", "latest")
    assert found is not None
    assert found.name.version == "1.10.0"
    assert sorted(at(place).tags("mime")) == ["1.10.0", "1.9.0", "1.9.1", "latest"]


def test_a_kit_that_is_not_there_is_none(place: str) -> None:
    assert pull.offer(at(place), "mime", "latest") is None
    assert at(place).tags("mime") == ()


@pytest.mark.parametrize("after_bytes", [0, 300, 1500, 4000, 8000])
def test_a_publish_that_was_cut_is_run_again(
    tmp_path: Path, place: str, after_bytes: int, paths: Paths
) -> None:
    host, _, path = place.partition("/")
    kit = a_kit(tmp_path)
    with cut_off(host, after_bytes=after_bytes) as dying:
        try:
            put(kit, f"{dying}/{path}")
        except RegistryFailed:
            pass
        else:
            assert after_bytes > 1500  # all of it went through before the end
    put(kit, place)
    assert pins.content(brought(place, paths)) == pins.content(kit)


@pytest.mark.parametrize("after_bytes", [0, 200, 1000, 1800, 3000, 6000])
def test_a_registry_that_dies_in_the_middle_of_a_pull_leaves_nothing_to_be_seen(
    tmp_path: Path, place: str, paths: Paths, after_bytes: int
) -> None:
    put(a_kit(tmp_path), place)
    host, _, path = place.partition("/")
    with cut_off(host, after_bytes=after_bytes) as dying, pytest.raises(RegistryFailed):
        brought(f"{dying}/{path}", paths)
    assert left(paths) == []
    assert brought(place, paths).is_dir()


def test_a_pull_that_was_killed_at_any_write_goes_on(tmp_path: Path, place: str, paths: Paths) -> None:
    put(a_kit(tmp_path), place)
    script = (
        "import itertools, os\n"
        "from troupe_tasks import durable\n"
        "from troupe_tasks.kits import pulled\n"
        "paths, left = Paths.from_env(), [0]\n"
        "def dying(real):\n"
        "    def act(*given, **named):\n"
        "        if left[0] == 0: os._exit(9)\n"
        "        left[0] -= 1\n"
        "        return real(*given, **named)\n"
        "    return act\n"
        "for name in ('write', 'rename', 'sync_tree', 'remove_tree'):\n"
        "    setattr(durable, name, dying(getattr(durable, name)))\n"
        "for left[0] in itertools.count():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        f"        {PULL}"
        "        os._exit(0)\n"
        "    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    whole, there = len(pulled.everything(paths)), (paths.kits / 'mime-1.2.3').is_dir()\n"
        "    print(status, whole, int(there), flush=True)\n"
        "    if status != 9: break\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script, place], cwd=ROOT, capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    lives = [line for line in done.stdout.splitlines() if not line.startswith("pulling")]
    assert lives[-1] == "0 1 1"
    assert set(lives[:-1]) == {"9 0 0", "9 1 1"}
    assert len(lives) > 6
    assert left(paths) == ["mime-1.2.3", "mime-1.2.3.json"]


def test_two_pulls_at_once_make_one(tmp_path: Path, place: str, paths: Paths) -> None:
    put(a_kit(tmp_path), place)
    words = [sys.executable, "-c", SETUP + "sys.stdin.readline()\n" + PULL, place]
    both = [
        subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        for _ in range(2)
    ]
    for one in both:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.communicate(timeout=60)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted(map(bool, said)) == [False, True]
    assert left(paths) == ["mime-1.2.3", "mime-1.2.3.json"]


def moved(place: str, folder: Path) -> str:
    """Move a version's tag as only somebody with other tools would, and return its new digest."""
    other = publish.packed(folder)
    there = at(place)
    for blob in (other.config, other.layer):
        there.upload("mime", blob)
    there.tag("mime", other.name.version, other.manifest)
    there.tag("mime", oci.LATEST, other.manifest)
    return other.digest


def test_a_version_that_moved_since_it_was_pulled_is_refused_with_what_to_do(
    tmp_path: Path, place: str, paths: Paths
) -> None:
    put(a_kit(tmp_path), place)
    folder = brought(place, paths)
    before = pins.content(folder)
    digest = moved(place, a_kit(tmp_path, soul="be loud\n"))
    with pytest.raises(Refused, match=digest) as told:
        brought(place, paths)
    assert "new version" in told.value.hint
    assert pins.content(folder) == before


def test_a_latest_that_is_not_what_its_version_names_is_refused(
    tmp_path: Path, place: str, paths: Paths
) -> None:
    put(a_kit(tmp_path), place)
    other = publish.packed(a_kit(tmp_path, soul="be loud\n"))
    for blob in (other.config, other.layer):
        at(place).upload("mime", blob)
    at(place).tag("mime", oci.LATEST, other.manifest)
    with pytest.raises(Refused, match="is not what `latest` says"):
        brought(place, paths)
    assert left(paths) == []


def test_a_kit_of_this_checkout_is_taken_over_when_it_is_the_same_and_else_refused(
    tmp_path: Path, place: str, paths: Paths
) -> None:
    put(a_kit(tmp_path), place)
    pins.pin(local.read(a_kit(tmp_path, soul="be loud\n"), name="mime"), paths)
    with pytest.raises(Refused, match="with other files"):
        brought(place, paths)
    assert left(paths) == ["mime-1.2.3"]
    pins.pin(local.read(a_kit(tmp_path, version="1.3.0"), name="mime"), paths)
    put(tmp_path / "mime", place)
    brought(place, paths)
    assert left(paths) == ["mime-1.2.3", "mime-1.3.0", "mime-1.3.0.json"]


def test_a_kit_that_calls_itself_otherwise_is_not_kept(tmp_path: Path, place: str, paths: Paths) -> None:
    packed = publish.packed(a_kit(tmp_path, version="9.9.9"))
    wrong = oci.artifact(oci.Name(type="mime", version="1.0.0"), packed.layer)
    publish.publish(wrong, at(place), silent)
    with pytest.raises(RegistryFailed, match=r"calls itself 9\.9\.9"):
        brought(place, paths)
    assert left(paths) == []


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_folder_without_a_kit_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no kit"):
        publish.packed(tmp_path / name)


def test_a_private_registry_asks_once_and_lets_nobody_else_in(tmp_path: Path, paths: Paths) -> None:
    asked: list[str] = []

    def person(place: str) -> Secret:
        asked.append(place)
        return somebody(place)

    with registry(tmp_path / "registry", private=True) as host:
        place = f"{host}/kits"
        artifact = publish.packed(a_kit(tmp_path))
        publish.publish(artifact, at(place, person), silent)
        assert asked == [host]
        there = at(place, person)
        found = pull.offer(there, "mime", "latest")
        assert found is not None
        pull.bring(there, found, paths, silent)
        assert there.types() == ("mime",)
        assert asked == [host, host]
        for wrong in (b"reader:wrong", TOKEN.encode()):  # a token alone goes with another name
            with pytest.raises(Refused, match="does not let you"):
                pull.offer(at(place, lambda _, wrong=wrong: Secret(wrong)), "mime", "latest")  # type: ignore[misc]
    for file in [*paths.kits.rglob("*"), *paths.state.rglob("*")]:
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()
    assert TOKEN not in repr(there)


def test_dockers_settings_and_netrc_are_not_read(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_home / ".docker").mkdir()
    with registry(tmp_path / "registry", private=True) as host:
        (own_home / ".docker/config.json").write_text(
            f'{{"auths": {{"{host}": {{"auth": "cmVhZGVyOm9wZW4tc2VzYW1lLTAxMjM0NTY3ODk="}}}}}}',
            encoding="ascii",
        )
        (own_home / ".netrc").write_text(
            f"machine 127.0.0.1 login reader password {TOKEN}\n", encoding="ascii"
        )
        (own_home / ".netrc").chmod(0o600)

        def refusing(_place: str) -> Secret:
            raise UsageError("asked")

        with pytest.raises(TroupeError, match="asked"):
            pull.offer(at(f"{host}/kits", refusing), "mime", "latest")
