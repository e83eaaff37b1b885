"""The image that all agents of a kit share: a read-only root filesystem, built once and cached.

Debian by mmdebstrap (packages checked by apt with Debian's keyring), then Hermes from its lock by pip
(every file checked by its hash, only wheels, so nothing foreign runs on the host), then byte-compiled by
the image's own Python in a closed box: the image is read-only, so what is not compiled now would be
compiled at every start.

An image is built in a folder beside its place and appears by a rename: a half image is never seen, and an
interrupted build is thrown away by the next one. The folder's name holds the digest of everything it is
made from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable, locks, process
from troupe_tasks.errors import NotReady, ToolFailed
from troupe_tasks.host import apt
from troupe_tasks.kits.model import Kit
from troupe_tasks.paths import Paths

Progress = Callable[[str], None]

# Raised when this module builds something else from the same kit.
_RECIPE = "2"
_DEBIAN_DEADLINE_S = 900
_PIP_DEADLINE_S = 900
_COMPILE_DEADLINE_S = 600
_LIB = "opt/hermes/lib"
AGENT_UID = 1000
# What the sandbox mounts; the root is read-only, so they exist already.
_MOUNT_POINTS = ("state", "workspace", "run/troupe/egress", "run/troupe/guest", "tmp", "proc", "dev", "sys")
_LAUNCHER = f"""#!/bin/sh
PYTHONPATH=/{_LIB} exec /usr/bin/python3 -m hermes_cli.main "$@"
"""
# glibc of the suite is 2.41, so wheels for any older one run.
_PLATFORMS = (
    "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_26_x86_64", "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_12_x86_64", "manylinux2010_x86_64",
    "manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64", "any",
)  # fmt: skip
_TRIMMED = ("usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*")


@dataclass(frozen=True)
class Image:
    """A finished image: its root filesystem, to be used read-only, and the digest of its inputs."""

    path: Path
    digest: str


def find_image(kit: Kit, paths: Paths) -> Image | None:
    """Return the kit's image if it is there already."""
    digest = inputs_digest(kit)
    root = _home(kit, paths, digest) / "rootfs"
    return Image(root, digest) if root.is_dir() else None


def ensure_image(kit: Kit, paths: Paths, progress: Progress, *, source: apt.Mirrors | None = None) -> Image:
    """Return the kit's image, building it if it is not there yet (about 90 s; 450 MB, while building 700 MB).

    Safe to interrupt and to run twice at once: the second waits for the first. Raises NotReady.
    """
    found = find_image(kit, paths)
    if found is not None:
        return found
    digest = inputs_digest(kit)
    durable.make_private_dir(paths.images)
    with locks.named(paths, f"image-{kit.name}", wait_s=_DEBIAN_DEADLINE_S + _PIP_DEADLINE_S):
        found = find_image(kit, paths)
        if found is None:
            home = _home(kit, paths, digest)
            work = paths.images / f".building-{kit.name}"
            durable.remove_tree(work)
            with _thrown_away_unless_finished(work):
                _build(kit, work, progress, source or apt.mirrors())
                work.rename(home)
                durable.sync_dir(paths.images)
            found = Image(home / "rootfs", digest)
    return found


def remove_unused(
    kit: Kit,
    paths: Paths,
    *,
    used_by: Iterable[Kit],
    letting_go: Callable[[Path], None] = lambda _root: None,
) -> bool:
    """Remove a kit version's image unless one of the kits in use has the same, and tell whether it was removed.

    letting_go is told the image's root before that, so that whoever made something of it can remove that too.
    """
    digest = inputs_digest(kit)
    with locks.named(paths, f"image-{kit.name}", wait_s=_DEBIAN_DEADLINE_S + _PIP_DEADLINE_S):
        if any(used.name == kit.name and inputs_digest(used) == digest for used in used_by):
            return False
        home = _home(kit, paths, digest)
        if not home.is_dir():
            return False
        letting_go(home / "rootfs")
        dying = paths.images / f".removing-{kit.name}"
        durable.remove_tree(dying)
        durable.rename(home, dying)  # a half image is never seen
        durable.remove_tree(dying)
        return True


def inputs_digest(kit: Kit) -> str:
    """Return the digest of everything that an image of this kit is made from."""
    total = hashlib.sha256(f"recipe {_RECIPE}\n{kit.image.model_dump_json()}\n".encode())
    for path in [kit.file("requirements.lock"), *sorted(kit.file("managed").rglob("*"))]:
        if path.is_file():
            data = path.read_bytes()
            total.update(f"{path.relative_to(kit.folder)} {len(data)}\n".encode() + data)
    return total.hexdigest()


def _home(kit: Kit, paths: Paths, digest: str) -> Path:
    return paths.images / f"{kit.name}-{digest[:16]}"


@contextmanager
def _thrown_away_unless_finished(work: Path) -> Iterator[None]:
    try:
        yield
    finally:
        durable.remove_tree(work)


def _build(kit: Kit, work: Path, progress: Progress, source: apt.Mirrors) -> None:
    root = work / "rootfs"
    durable.make_private_dir(work)
    try:
        progress(f"Building the image of kit {kit.name} {kit.version}: Debian {kit.image.suite}")
        with durable.told(work):
            _debian(kit, work, root, source)
            progress("Building the image: Hermes and what it needs, from PyPI")
            _hermes(kit, work, root)
            _furnish(kit, root)
            progress("Building the image: compiling")
            _compile(root)
            _settle_modes(root)
        # Others read it through the sandbox: an agent's own uid has no other way to these files.
        work.chmod(0o711)
        process.run(["sync", "-f", root], deadline_s=300)
    except ToolFailed as error:
        if _is_full(work):
            hint = "Free about 1 GB there, then run the same command again."
            raise NotReady(
                f"no room left to build the image in {work.parent}", cause=str(error), hint=hint
            ) from error
        hint = "Check the network (and http_proxy, if you need one), then run the same command again."
        raise NotReady("the kit's image could not be built", cause=str(error), hint=hint) from error


def _is_full(work: Path) -> bool:
    return shutil.disk_usage(work.parent).free < 32 << 20


def _debian(kit: Kit, work: Path, root: Path, source: apt.Mirrors) -> None:
    archive = work / "debian.tar"
    apt.keyring()
    as_root = os.geteuid() == 0
    with _scratch(work, as_root=as_root) as scratch:
        process.run(
            [
                "mmdebstrap", "--quiet", f"--mode={'root' if as_root else 'unshare'}",
                "--variant=minbase", f"--include={','.join(kit.image.packages)}", "--architectures=amd64",
                "--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none",
                "--aptopt=Acquire::Retries 2", "--aptopt=Acquire::http::Timeout 30",
                *(f"--dpkgopt=path-exclude=/{pattern}" for pattern in _TRIMMED),
                kit.image.suite, archive, *source.lines(kit.image.suite),
            ],
            env={**apt.network_env(), "TMPDIR": str(scratch)}, deadline_s=_DEBIAN_DEADLINE_S,
        )  # fmt: skip
    root.mkdir(mode=0o755)
    owners = ["--numeric-owner", "--same-owner"] if as_root else ["--no-same-owner"]
    process.run(["tar", "-xpf", archive, "-C", root, *owners, "--exclude=./dev/*"], deadline_s=300)
    archive.unlink()


@contextmanager
def _scratch(work: Path, *, as_root: bool) -> Iterator[Path]:
    """Yield mmdebstrap's temporary folder. Subordinate uids must reach an ordinary user's: no 0700 home."""
    if as_root:
        folder = work / "scratch"
        folder.mkdir(mode=0o755)
        yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix="troupe-", dir="/var/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        # A killed mmdebstrap leaves files of the subordinate uids, which only their own namespace may remove.
        inside = ["unshare", "--map-root-user", "--map-auto", "rm", "-rf", "--", str(folder)]
        process.run(inside, deadline_s=60, ok=None)


def _hermes(kit: Kit, work: Path, root: Path) -> None:
    abi = f"cp{kit.image.python.replace('.', '')}"
    argv: list[str | Path] = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
        "--no-cache-dir", "--no-compile", "--no-deps", "--only-binary=:all:", "--require-hashes",
        "--implementation", "cp", "--python-version", kit.image.python,
        *(word for name in (abi, "abi3", "none") for word in ("--abi", name)),
        *(word for name in _PLATFORMS for word in ("--platform", name)),
        "--target", root / _LIB, "-r", kit.file("requirements.lock"),
    ]  # fmt: skip
    process.run(argv, env={**apt.network_env(), "TMPDIR": str(work)}, deadline_s=_PIP_DEADLINE_S)
    # Their first lines name the host's Python; the image has a launcher of its own.
    durable.remove_tree(root / _LIB / "bin")


def _furnish(kit: Kit, root: Path) -> None:
    for name in _MOUNT_POINTS:
        _folder(root / name)
    _put(root / "opt/hermes/bin/hermes", _LAUNCHER.encode(), 0o755)
    policy = kit.file("managed")
    for source in sorted(policy.rglob("*")):
        target = root / "etc/hermes" / source.relative_to(policy)
        if source.is_file():
            _put(target, source.read_bytes(), 0o644)
    with (root / "etc/passwd").open("a", encoding="ascii") as users:
        users.write(f"agent:x:{AGENT_UID}:{AGENT_UID}:agent:/state/home:/bin/bash\n")
    with (root / "etc/group").open("a", encoding="ascii") as groups:
        groups.write(f"agent:x:{AGENT_UID}:\n")
    _put(root / "etc/hostname", b"agent\n", 0o644)  # mmdebstrap copies the host's, which is nobody's business
    _put(root / "etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n", 0o644)
    # The broker resolves names; nothing inside does.
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    _put(root / "etc/resolv.conf", b"", 0o644)


def _folder(path: Path) -> None:
    """Make a folder that every user may enter, whatever the umask, and its missing parents."""
    if not path.is_dir():
        _folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


def _put(path: Path, data: bytes, mode: int) -> None:
    _folder(path.parent)
    path.write_bytes(data)
    path.chmod(mode)


def _compile(root: Path) -> None:
    # By hash without checking: times of files may change when an image is copied, their content never does.
    process.run(
        [
            "bwrap", "--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv",
            "--ro-bind", root, "/", "--bind", root / _LIB, f"/{_LIB}", "--dev", "/dev", "--proc", "/proc",
            "--tmpfs", "/tmp", "/usr/bin/python3", "-I", "-m", "compileall", "-q", "-j", "0",
            "--invalidation-mode", "unchecked-hash", f"/{_LIB}",
        ],
        deadline_s=_COMPILE_DEADLINE_S, ok=(0, 1),  # 1: some file is no Python of this version
    )  # fmt: skip


def _settle_modes(root: Path) -> None:
    """Take away every set-user and set-group bit; let every user read Hermes, whatever the umask was."""
    library = root / _LIB
    for place, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(place, name)
            mode = path.lstat().st_mode
            wanted = stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID)
            if path.is_relative_to(library):
                wanted |= 0o555 if stat.S_ISDIR(mode) else 0o444
            if not stat.S_ISLNK(mode) and wanted != stat.S_IMODE(mode):
                path.chmod(wanted)
    for part in (library, library.parent, library.parent.parent):
        part.chmod(0o755)
