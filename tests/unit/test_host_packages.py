"""The system packages that agents need: found by their files, installed only after saying which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from troupe_tasks import process
from troupe_tasks.errors import NotConfirmed, NotReady, ToolFailed
from troupe_tasks.host import packages

EVERY_FILE = (
    "usr/bin/mmdebstrap", "usr/bin/bwrap", "usr/share/containers/seccomp.json",
    "usr/lib/x86_64-linux-gnu/libseccomp.so.2", "usr/sbin/mkfs.ext4", "usr/sbin/losetup", "usr/bin/unshare",
    "usr/bin/setpriv", "usr/share/keyrings/debian-archive-keyring.gpg", "usr/bin/newuidmap",
    "etc/ssl/certs/ca-certificates.crt",
    "usr/bin/newgidmap",
)  # fmt: skip


def machine(root: Path, *without: str) -> Path:
    for name in set(EVERY_FILE) - set(without):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch(mode=0o755)
    return root


def names(root: Path, *, as_root: bool) -> list[str]:
    return [package.name for package in packages.missing(root=root, as_root=as_root)]


def test_nothing_is_missing_where_every_file_is_there(tmp_path: Path) -> None:
    assert names(machine(tmp_path), as_root=False) == []


@pytest.mark.parametrize(
    ("gone", "package"),
    [
        ("usr/bin/mmdebstrap", "mmdebstrap"),
        ("usr/bin/bwrap", "bubblewrap"),
        ("usr/share/containers/seccomp.json", "golang-github-containers-common"),
        ("usr/lib/x86_64-linux-gnu/libseccomp.so.2", "libseccomp2"),
        ("usr/sbin/mkfs.ext4", "e2fsprogs"),
        ("usr/bin/setpriv", "util-linux"),
        ("usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
        ("usr/bin/newgidmap", "uidmap"),
        ("etc/ssl/certs/ca-certificates.crt", "ca-certificates"),
    ],
)
def test_each_missing_file_names_its_package(tmp_path: Path, gone: str, package: str) -> None:
    assert names(machine(tmp_path, gone), as_root=False) == [package]


def test_an_agent_of_sbx_lacks_no_more_than_what_builds_its_image(tmp_path: Path) -> None:
    root = machine(tmp_path, *EVERY_FILE)
    capsules = {package.name for package in packages.missing(root=root, as_root=False)}
    sbx = {package.name for package in packages.missing(root=root, as_root=False, driver="sbx")}
    assert capsules - sbx == {"golang-github-containers-common", "libseccomp2", "e2fsprogs"}
    assert {"mmdebstrap", "bubblewrap", "uidmap", "util-linux"} < sbx < capsules


def test_root_needs_no_uidmap(tmp_path: Path) -> None:
    assert names(machine(tmp_path, "usr/bin/newuidmap"), as_root=True) == []


def test_a_program_that_cannot_be_run_does_not_count(tmp_path: Path) -> None:
    (machine(tmp_path) / "usr/bin/bwrap").chmod(0o644)
    assert names(tmp_path, as_root=True) == ["bubblewrap"]


def test_a_filter_profile_put_there_by_hand_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "usr/share/containers/seccomp.json")
    (root / "etc/containers").mkdir(parents=True)
    (root / "etc/containers/seccomp.json").touch()
    assert names(root, as_root=True) == []


@dataclass
class Apt:
    """Stands in for apt-get, sudo and the machine they change."""

    lacking: tuple[packages.Package, ...] = packages.PACKAGES[:2]
    fails: bool = False
    ran: list[list[str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, env: Mapping[str, str], deadline_s: float) -> process.Done:
        if self.fails:
            raise ToolFailed("apt-get ended with status 100", cause="no space left")
        self.terminal(argv, env=env)
        return process.Done(0, b"", b"")

    def terminal(self, argv: Sequence[str], *, env: Mapping[str, str]) -> int:
        self.ran.append(list(argv))
        if "install" in argv:
            self.lacking = ()
        return 100 if self.fails else 0


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> Apt:
    made = Apt()
    monkeypatch.setattr(packages, "missing", lambda **_: made.lacking)
    monkeypatch.setattr(process, "run", made.run)
    monkeypatch.setattr(process, "terminal", made.terminal)
    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return made


def test_root_without_a_terminal_goes_ahead_after_saying_which(apt: Apt) -> None:
    packages.ensure(driver="capsule", say=apt.said.append, ask=None)
    assert any("mmdebstrap: builds the kits' images" in line for line in apt.said)
    assert apt.ran[-1][-2:] == ["mmdebstrap", "bubblewrap"]
    assert apt.ran[-1][:2] == ["env", "DEBIAN_FRONTEND=noninteractive"]


def test_on_a_terminal_nothing_is_installed_without_a_yes(apt: Apt) -> None:
    with pytest.raises(NotConfirmed) as refused:
        packages.ensure(driver="capsule", say=apt.said.append, ask=lambda _: False)
    assert apt.ran == []
    assert "apt-get install --no-install-recommends mmdebstrap bubblewrap" in refused.value.hint


def test_an_ordinary_user_without_a_terminal_gets_the_command(
    apt: Apt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotReady) as refused:
        packages.ensure(driver="capsule", say=apt.said.append, ask=None)
    assert "sudo apt-get install" in refused.value.hint
    assert apt.ran == []


def test_an_ordinary_user_on_a_terminal_installs_through_sudo(
    apt: Apt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    packages.ensure(driver="capsule", say=apt.said.append, ask=lambda _: True)
    assert [argv[0] for argv in apt.ran] == ["sudo", "sudo"]


def test_a_failing_apt_is_told_with_its_cause(apt: Apt) -> None:
    apt.fails = True
    with pytest.raises(NotReady, match="no space left"):
        packages.ensure(driver="capsule", say=apt.said.append, ask=None)


def test_packages_that_stay_missing_are_told(apt: Apt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing", lambda **_: packages.PACKAGES[:1])
    with pytest.raises(NotReady, match="still missing: mmdebstrap"):
        packages.ensure(driver="capsule", say=apt.said.append, ask=None)


def test_nothing_missing_says_nothing(apt: Apt) -> None:
    apt.lacking = ()
    packages.ensure(driver="capsule", say=apt.said.append, ask=None)
    assert apt.said == []
    assert apt.ran == []
