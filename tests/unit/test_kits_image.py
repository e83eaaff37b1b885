"""The builder's order and its promises, with small programs in the place of mmdebstrap, pip and bwrap.

The real image is built by the integration session.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest

from troupe_tasks import process
from troupe_tasks.errors import NotReady, ToolFailed
from troupe_tasks.host import apt
from troupe_tasks.kits import image, local
from troupe_tasks.kits.model import Kit
from troupe_tasks.paths import Paths

SOURCE = apt.Mirrors(main="http://mirror.test/debian", security="http://mirror.test/debian-security")


class Programs:
    """Stands in for process.run: does what each program would leave behind, and remembers the words."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.failing = ""
        self.killed = ""

    def __call__(self, argv: list[str | Path], **more: object) -> process.Done:
        words = [str(word) for word in argv]
        self.calls.append(words)
        program = "pip" if words[1:3] == ["-m", "pip"] else Path(words[0]).name
        if program == self.failing:
            raise ToolFailed(f"{program} ended with status 100", cause="Could not resolve 'mirror.test'")
        if program == self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if program == "mmdebstrap":
            next(Path(word) for word in words if word.endswith("debian.tar")).touch()
        elif program == "tar":
            root = Path(words[words.index("-C") + 1])
            for folder in ("etc", "usr/bin", "dev", "tmp"):
                (root / folder).mkdir(parents=True)
            (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n", encoding="ascii")
            (root / "etc/group").write_text("root:x:0:\n", encoding="ascii")
            (root / "usr/bin/su").touch()
            (root / "usr/bin/su").chmod(0o4755)
        elif program == "pip":
            library = Path(words[words.index("--target") + 1])
            (library / "bin").mkdir(parents=True)
            (library / "hermes.py").touch(mode=0o600)
        return process.Done(0, b"", b"")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    one = Programs()
    monkeypatch.setattr(process, "run", one)
    monkeypatch.setattr(apt, "keyring", lambda: apt.KEYRING)
    return one


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    shutil.copytree(local.find("hermes").folder, tmp_path / "hermes")
    return local.read(tmp_path / "hermes", name="hermes")


@pytest.fixture
def paths() -> Paths:
    return Paths.from_env()


def build(kit: Kit, paths: Paths) -> image.Image:
    return image.ensure_image(kit, paths, lambda _: None, source=SOURCE)


def test_an_image_is_built_once(programs: Programs, kit: Kit, paths: Paths) -> None:
    first = build(kit, paths)
    count = len(programs.calls)
    assert build(kit, paths) == first
    assert len(programs.calls) == count
    assert image.find_image(kit, paths) == first
    assert first.path == paths.images / f"hermes-{first.digest[:16]}" / "rootfs"


def test_an_image_goes_only_when_no_kit_in_use_has_the_same(
    programs: Programs, kit: Kit, paths: Paths
) -> None:
    built = build(kit, paths)
    twin = kit.model_copy(update={"version": "9.9.9"})
    assert not image.remove_unused(kit, paths, used_by=[twin])
    assert built.path.is_dir()
    other = kit.model_copy(update={"image": kit.image.model_copy(update={"packages": ("git",)})})
    told: list[Path] = []
    assert image.remove_unused(kit, paths, used_by=[other], letting_go=told.append)
    assert told == [built.path]
    assert not built.path.exists()
    assert list(paths.images.iterdir()) == []
    assert not image.remove_unused(kit, paths, used_by=[])


def test_the_image_has_what_a_sandbox_mounts_and_no_set_user_bit(
    programs: Programs, kit: Kit, paths: Paths
) -> None:
    old = os.umask(0o077)
    try:
        root = build(kit, paths).path
    finally:
        os.umask(old)
    for name in ("state", "workspace", "run/troupe/egress", "run/troupe/guest", "proc", "etc/hermes"):
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o755, name
    assert stat.S_IMODE((root / "usr/bin/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "opt/hermes/lib/hermes.py").stat().st_mode) == 0o644
    assert stat.S_IMODE((root / "opt/hermes/bin/hermes").stat().st_mode) == 0o755
    assert not (root / "opt/hermes/lib/bin").exists()
    assert "agent:x:1000:1000:" in (root / "etc/passwd").read_text(encoding="ascii")
    assert (root / "etc/hostname").read_text(encoding="ascii") == "agent\n"
    managed = (root / "etc/hermes/rehearsal/config.yaml").read_bytes()
    assert managed == kit.file("managed/rehearsal/config.yaml").read_bytes()


def test_foreign_code_runs_only_in_a_closed_box(programs: Programs, kit: Kit, paths: Paths) -> None:
    build(kit, paths)
    pip = next(words for words in programs.calls if words[1:3] == ["-m", "pip"])
    assert pip[0] == sys.executable
    assert {"--only-binary=:all:", "--require-hashes", "--no-deps"} <= set(pip)
    box = next(words for words in programs.calls if words[0] == "bwrap")
    assert {"--unshare-all", "--clearenv"} <= set(box)
    assert box[box.index("--ro-bind") + 2] == "/"


@pytest.mark.parametrize("program", ["mmdebstrap", "tar", "pip", "bwrap", "sync"])
def test_a_failed_build_leaves_nothing_and_says_why(
    programs: Programs, kit: Kit, paths: Paths, program: str
) -> None:
    programs.failing = program
    with pytest.raises(NotReady, match=f"{program} ended with status 100"):
        build(kit, paths)
    assert list(paths.images.iterdir()) == []
    programs.failing = ""
    assert build(kit, paths).path.is_dir()


@pytest.mark.parametrize("program", ["mmdebstrap", "pip", "bwrap", "sync"])
def test_a_killed_build_is_never_seen_and_thrown_away(
    programs: Programs, kit: Kit, paths: Paths, program: str
) -> None:
    programs.killed = program
    child = os.fork()
    if child == 0:
        build(kit, paths)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert image.find_image(kit, paths) is None
    programs.killed = ""
    found = build(kit, paths)
    assert [path.name for path in paths.images.iterdir()] == [found.path.parent.name]


def test_two_at_once_build_one(programs: Programs, kit: Kit, paths: Paths) -> None:
    found: list[image.Image] = []
    threads = [threading.Thread(target=lambda: found.append(build(kit, paths))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len([words for words in programs.calls if words[0] == "mmdebstrap"]) == 1


@pytest.mark.parametrize("name", ["requirements.lock", "managed/rehearsal/config.yaml"])
def test_another_input_is_another_image(programs: Programs, kit: Kit, paths: Paths, name: str) -> None:
    first = build(kit, paths)
    with kit.file(name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert image.find_image(kit, paths) is None
    assert build(kit, paths).path != first.path


def test_the_persona_is_no_part_of_the_image(kit: Kit) -> None:
    before = image.inputs_digest(kit)
    kit.file("SOUL.md").write_text("changed", encoding="utf-8")
    assert image.inputs_digest(kit) == before
