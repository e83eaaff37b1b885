from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from troupe_tasks import durable, resources
from troupe_tasks.errors import NotReady, RegistryFailed, UsageError
from troupe_tasks.kits import archive, local, oci, publish, pulled
from troupe_tasks.paths import Paths

HERMES = resources.kits_dir() / "hermes"


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    shutil.copytree(HERMES, tmp_path / "kits" / "hermes")
    return tmp_path / "kits"


def changed(kits: Path, old: str, new: str) -> None:
    source = kits / "hermes" / "kit.toml"
    text = source.read_text(encoding="utf-8")
    assert old in text
    source.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_the_published_kit_is_read() -> None:
    kit = local.find("hermes")
    assert (kit.name, kit.version) == ("hermes", "0.3.0")
    assert (kit.sizes.cpus, kit.sizes.memory_mib, kit.sizes.storage_mib) == (1, 2048, 10240)
    assert kit.file("requirements.lock").is_file()


@pytest.mark.parametrize(
    "kind", ["nothing", "", "..", "../kits/hermes", "-rf", "hermes/", "\x1b[2J", "hermes\n"]
)
def test_an_unknown_type_is_told_with_the_known_ones(kind: str) -> None:
    with pytest.raises(UsageError) as told:
        local.find(kind)
    assert "hermes" in told.value.hint
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('summary = "a personal Hermes agent"', 'summary = "x"\nextra = 1', "extra"),
        ("cpus = 1", "cpus = 0", "sizes.cpus"),
        ("cpus = 1", 'cpus = "2"', "sizes.cpus"),
        ("cpus = 1", "cpus = true", "sizes.cpus"),
        ('version = "0.3.0"', 'version = "latest"', "version"),
        ('suite = "trixie"', 'suite = "trixie main"', "image.suite"),
        ('"git"', '"--help"', "image.packages.2"),
        ('"pypi.org"', '"10.0.0.1"', "egress.0.host"),
        ("ports = [443]", "ports = [0]", "egress.0.ports.0"),
        ('name = "hermes"', 'name = "other"', "other"),
        ('name = "hermes"', "name = ", "line"),
    ],
)
def test_a_kit_that_is_off_is_refused_naming_the_place(kits: Path, old: str, new: str, where: str) -> None:
    changed(kits, old, new)
    with pytest.raises(NotReady, match=where):
        local.find("hermes", kits)


@pytest.mark.parametrize("name", ["SOUL.md", "requirements.lock"])
def test_a_kit_that_lacks_a_file_is_refused_before_it_is_published_or_kept(
    kits: Path, tmp_path: Path, name: str
) -> None:
    whole = archive.pack(kits / "hermes")
    (kits / "hermes" / name).unlink()
    with pytest.raises(NotReady, match=f"no {name}"):
        local.find("hermes", kits)
    with pytest.raises(NotReady, match=f"no {name}"):
        publish.packed(kits / "hermes")
    paths, known = Paths.from_env(), oci.Name(type="hermes", version="0.3.0")
    durable.make_private_dir(paths.kits)
    new = pulled.Pulled(name=known, digest=f"sha256:{'0' * 64}", registry="registry.example.com")
    with pytest.raises(RegistryFailed, match=f"no {name}"):
        pulled.keep(paths, new, archive.pack(kits / "hermes"))
    assert not list(paths.kits.iterdir())
    assert pulled.keep(paths, new, whole).name == "hermes"


def test_no_kits_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hermes"):
        local.find("hermes", tmp_path)
