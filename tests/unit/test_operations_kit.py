"""Which kit an agent is made from, and what there is of kits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registries import a_kit, needs_registry, nobody, registry
from troupe_tasks import config
from troupe_tasks.errors import RegistryFailed, UsageError
from troupe_tasks.journal import Journal
from troupe_tasks.kits import publish, pulled
from troupe_tasks.kits.registry import Place, Registry
from troupe_tasks.operations import kit as kits
from troupe_tasks.operations.create import Wish
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.sizes import Wanted

pytestmark = needs_registry


@pytest.fixture
def house() -> House:
    return House(Paths.from_env())


@pytest.fixture
def place(tmp_path: Path, house: House) -> Iterator[str]:
    """Yield a registry that is set."""
    with registry(tmp_path / "registry") as host:
        config.put(house.paths, "registry", f"{host}/kits")
        yield f"{host}/kits"


def put(folder: Path, place: str) -> str:
    artifact = publish.packed(folder)
    publish.publish(artifact, Registry(Place.of(place), nobody), lambda _: None)
    return artifact.digest


def found(house: House, kind: str = "mime") -> kits.Found:
    return kits.for_create(house, "jane", kind, login=nobody, told=lambda _: None)


def begin(house: House, chosen: kits.Found) -> None:
    """Begin a create as `create` does, and be interrupted."""
    wish = Wish(
        "jane",
        "Jane",
        chosen.kit,
        True,
        Wanted(cpus=1, memory_mib=512, storage_mib=1024),
        digest=chosen.digest,
    )
    Journal(house.paths, "jane").open("create", inputs=wish.inputs(), finish="troupe create mime --name Jane")


def test_without_a_registry_the_kit_is_the_checkouts(house: House) -> None:
    chosen = found(house, "hermes")
    assert chosen.digest is None
    assert chosen.kit.folder.parent.name == "kits"
    with pytest.raises(UsageError, match="no kit of type"):
        found(house, "mime")


def test_with_a_registry_it_is_the_latest_of_there_pinned(tmp_path: Path, house: House, place: str) -> None:
    digest = put(a_kit(tmp_path), place)
    chosen = found(house)
    assert (chosen.kit.version, chosen.digest) == ("1.2.3", digest)
    assert chosen.kit.folder == house.paths.kits / "mime-1.2.3"
    newer = put(a_kit(tmp_path, version="1.3.0"), place)
    assert found(house).digest == newer


def test_an_interrupted_create_goes_on_with_what_it_began_with_though_latest_moved_and_the_registry_is_gone(
    tmp_path: Path, house: House
) -> None:
    with registry(tmp_path / "registry") as host:
        config.put(house.paths, "registry", f"{host}/kits")
        digest = put(a_kit(tmp_path), f"{host}/kits")
        begin(house, found(house))
        put(a_kit(tmp_path, version="2.0.0"), f"{host}/kits")
        assert found(house).digest == digest
    chosen = found(house)
    assert (chosen.kit.version, chosen.digest) == ("1.2.3", digest)
    with pytest.raises(RegistryFailed):
        kits.for_create(house, "another", "mime", login=nobody, told=lambda _: None)


def test_what_it_began_with_is_brought_again_by_its_digest(tmp_path: Path, house: House, place: str) -> None:
    digest = put(a_kit(tmp_path), place)
    chosen = found(house)
    begin(house, chosen)
    put(a_kit(tmp_path, version="2.0.0"), place)
    for path in house.paths.kits.iterdir():
        path.rename(tmp_path / path.name)
    again = found(house)
    assert (again.kit.version, again.digest) == ("1.2.3", digest)


def test_a_kit_that_the_registry_does_not_have_is_told(house: House, place: str) -> None:
    for reference in ("mime", "mime:1.2.3", "hermes"):
        with pytest.raises(UsageError, match="has no"):
            kits.pull(house, reference, login=nobody, told=lambda _: None)


@pytest.mark.parametrize(
    "text", ["", "..", "Mime", "mime:", "mime:1", "mime:1.2", "a/b", "mime@sha256:0", "-x", "\x1b[2J"]
)
def test_what_is_no_reference_is_told(house: House, place: str, text: str) -> None:
    with pytest.raises(UsageError, match="is no kit") as told:
        kits.pull(house, text, login=nobody, told=lambda _: None)
    assert "\x1b" not in str(told.value)


def test_the_list_tells_what_is_there_what_was_pulled_and_what_moved(
    tmp_path: Path, house: House, place: str
) -> None:
    first = put(a_kit(tmp_path), place)
    found(house)
    second = put(a_kit(tmp_path, version="1.10.0"), place)
    put(a_kit(tmp_path, name="other", version="0.1.0"), place)
    shown = kits.kits(house, login=nobody)
    assert shown.complete
    assert [(one.type, one.version, one.latest, one.in_registry, one.pulled) for one in shown.versions][:2] == [
        ("mime", "1.2.3", False, first, first), ("mime", "1.10.0", True, second, None),
    ]  # fmt: skip
    assert [one.type for one in shown.versions] == ["mime", "mime", "other"]
    assert not any(one.moved for one in shown.versions)
    note = house.paths.kits / "mime-1.2.3.json"
    note.write_text(note.read_text(encoding="utf-8").replace(first, second), encoding="utf-8")
    assert [one.moved for one in kits.kits(house, login=nobody).versions] == [True, False, False]


def test_without_a_registry_the_list_is_the_checkouts_and_what_was_pulled(
    tmp_path: Path, house: House, place: str
) -> None:
    put(a_kit(tmp_path), place)
    found(house)
    config.unset(house.paths, "registry")
    shown = kits.kits(house, login=nobody).versions
    assert [(one.type, one.own, one.pulled is not None) for one in shown] == [
        ("hermes", True, False), ("mime", False, True),
    ]  # fmt: skip


def test_a_note_that_is_not_ours_is_told(tmp_path: Path, house: House, place: str) -> None:
    put(a_kit(tmp_path), place)
    found(house)
    (house.paths.kits / "mime-1.2.3.json").write_text("{}", encoding="utf-8")
    with pytest.raises(Exception, match="not what troupe writes"):
        pulled.everything(house.paths)
