"""What is fetched from Debian, with a small archive program in apt's place; once with the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from troupe_tasks import process
from troupe_tasks.errors import NotReady, ToolFailed
from troupe_tasks.host import apt
from troupe_tasks.paths import Paths


class Apt:
    """Stands in for process.run: fetches and unpacks a `runsc` that says its version."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.offline = False

    def __call__(self, argv: list[str | Path], *, cwd: Path | None = None, **more: object) -> process.Done:
        words = [str(word) for word in argv]
        self.calls.append(words)
        if words[-1] == "update" and self.offline:
            raise ToolFailed("apt-get ended with status 100", cause="Could not resolve 'deb.debian.org'")
        if words[-2:] == ["download", "runsc"]:
            assert cwd is not None
            (cwd / "runsc_1%3a2_amd64.deb").touch()
        if words[:2] == ["dpkg-deb", "--field"]:
            return process.Done(0, b"1:2/../x\n", b"")
        if words[:2] == ["dpkg-deb", "-x"]:
            program = Path(words[3], "usr/bin/runsc")
            program.parent.mkdir(parents=True)
            program.write_bytes(b"the program")
        return process.Done(0, b"", b"")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Apt:
    one = Apt()
    monkeypatch.setattr(process, "run", one)
    (tmp_path / "keyring.gpg").touch()
    monkeypatch.setattr(apt, "KEYRING", tmp_path / "keyring.gpg")
    return one


@pytest.fixture
def paths() -> Paths:
    return Paths.from_env()


def fetch(paths: Paths) -> Path:
    return apt.ensure_runsc(paths, lambda _: None)


def test_runsc_is_fetched_once_into_our_own_folder(fake: Apt, paths: Paths) -> None:
    link = fetch(paths)
    assert link == paths.tools / "runsc"
    assert link.readlink() == Path("runsc-1_2_.._x/runsc")
    assert link.stat().st_mode & 0o777 == 0o755
    assert apt.verify_runsc(link)
    count = len(fake.calls)
    assert fetch(paths) == link
    assert len(fake.calls) == count
    assert not (paths.tools / ".fetching").exists()


def test_a_cut_program_is_fetched_again(fake: Apt, paths: Paths) -> None:
    link = fetch(paths)
    link.write_bytes(b"the prog")
    assert fetch(paths).read_bytes() == b"the program"


def test_a_changed_program_is_told(fake: Apt, paths: Paths) -> None:
    link = fetch(paths)
    link.write_bytes(b"another pro")
    assert not apt.verify_runsc(link)


def test_offline_is_told_with_a_remedy_and_leaves_nothing(fake: Apt, paths: Paths) -> None:
    fake.offline = True
    with pytest.raises(NotReady, match="Could not resolve") as told:
        fetch(paths)
    assert "network" in told.value.hint
    assert list(paths.tools.iterdir()) == []


def test_a_missing_keyring_names_its_package(
    fake: Apt, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "KEYRING", paths.tools / "none.gpg")
    with pytest.raises(NotReady) as told:
        fetch(paths)
    assert "debian-archive-keyring" in told.value.hint


def test_apt_never_touches_the_machines_own_folders_and_wants_signatures(fake: Apt, paths: Paths) -> None:
    fetch(paths)
    update = next(words for words in fake.calls if words[-1] == "update")
    work = str(paths.tools / ".fetching")
    for key in ("Dir::State", "Dir::State::lists", "Dir::Cache", "Dir::Etc::sourcelist"):
        assert any(word.startswith(f"{key}={work}") for word in update), key
    assert "APT::Get::AllowUnauthenticated=false" in update


def test_the_machines_own_mirror_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = (
        b"http://near.test/debian/\nhttp://near.test/debian-security/\nhttps://other.test/x/\nfile:/srv/y/\n"
    )
    monkeypatch.setattr(process, "run", lambda *_, **__: process.Done(0, shown, b""))
    assert apt.mirrors() == apt.Mirrors("http://near.test/debian", "http://near.test/debian-security")
    assert [line.split()[-2] for line in apt.mirrors().lines("trixie")] == [
        "trixie", "trixie-updates", "trixie-security",
    ]  # fmt: skip


def test_without_a_mirror_of_its_own_it_is_debians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", lambda *_, **__: process.Done(100, b"", b"broken"))
    assert apt.mirrors().main == "http://deb.debian.org/debian"


def test_only_proxy_and_certificate_variables_travel() -> None:
    env = {
        "http_proxy": "http://p:1",
        "PIP_CERT": "/c",
        "AWS_SECRET": "s",
        "LD_PRELOAD": "x",
        "https_proxy": "",
    }
    assert apt.network_env(env) == {"http_proxy": "http://p:1", "PIP_CERT": "/c"}


@pytest.mark.network
def test_the_real_archive_brings_a_runsc_that_runs(paths: Paths) -> None:
    link = fetch(paths)
    assert apt.verify_runsc(link)
    assert b"runsc version" in process.run([link, "--version"], deadline_s=20).stdout
