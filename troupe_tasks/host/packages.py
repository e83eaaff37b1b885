"""Know the system packages that agents need, which of them are missing, and how to install them.

A package is judged by the files it brings, not by the package database: what a person built by hand counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import process
from troupe_tasks.errors import NotConfirmed, NotReady, ToolFailed, ToolMissing

_PROGRAM_FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_INSTALL_DEADLINE_S = 900.0
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class Package:
    """A Debian package, what troupe does with it, and the programs and files that show it is there."""

    name: str
    use: str
    programs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    ordinary_user_only: bool = False
    capsule_only: bool = False  # the others build images as well, which every driver needs


# Each of `files` is a pattern under the root, and one match of one of them is enough.
PACKAGES = (
    Package("mmdebstrap", "builds the kits' images", programs=("mmdebstrap",)),
    Package("bubblewrap", "makes sandboxes where gVisor does not run", programs=("bwrap",)),
    Package(
        "golang-github-containers-common",
        "brings the system-call filter for sandboxes",
        files=("usr/share/containers/seccomp.json", "etc/containers/seccomp.json"),
        capsule_only=True,
    ),
    Package(
        "libseccomp2",
        "compiles that filter",
        files=("usr/lib/*/libseccomp.so.2", "usr/lib/libseccomp.so.2", "lib/*/libseccomp.so.2"),
        capsule_only=True,
    ),
    Package("e2fsprogs", "makes the sandboxes' disks", programs=("mkfs.ext4",), capsule_only=True),
    Package("util-linux", "mounts them", programs=("losetup", "unshare", "setpriv")),
    Package(
        "debian-archive-keyring",
        "proves that an image's packages are Debian's",
        files=("usr/share/keyrings/debian-archive-keyring.*",),
    ),
    Package(
        "ca-certificates",
        "says whom the broker trusts to be a provider",
        files=("etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/cert.pem"),
    ),
    Package(
        "uidmap",
        "gives an ordinary user's sandboxes users of their own",
        programs=("newuidmap", "newgidmap"),
        ordinary_user_only=True,
    ),
)


def _there(package: Package, root: Path) -> bool:
    def program(name: str) -> bool:
        return any(os.access(root / folder / name, os.X_OK) for folder in _PROGRAM_FOLDERS)

    def matches(pattern: str) -> bool:
        return next(root.glob(pattern), None) is not None

    return all(map(program, package.programs)) and (not package.files or any(map(matches, package.files)))


def missing(
    *, root: Path = Path("/"), as_root: bool | None = None, driver: str = "capsule"
) -> tuple[Package, ...]:
    """Return the packages that this machine lacks for running agents of a driver as this user."""
    privileged = os.geteuid() == 0 if as_root is None else as_root
    wanted = [
        package
        for package in PACKAGES
        if not (package.ordinary_user_only and privileged)
        and not (package.capsule_only and driver != "capsule")
    ]
    return tuple(package for package in wanted if not _there(package, root))


def install_command(packages: Sequence[Package], *, as_root: bool | None = None) -> str:
    """Return the command line by which a person installs these packages."""
    privileged = os.geteuid() == 0 if as_root is None else as_root
    sudo = "" if privileged else "sudo "
    names = " ".join(package.name for package in packages)
    return f"{sudo}apt-get update && {sudo}apt-get install --no-install-recommends {names}"


def ensure(*, driver: str, say: Callable[[str], None], ask: Callable[[str], bool] | None) -> None:
    """Install what agents of a driver lack, after saying which packages and why.

    ask is None where there is no terminal: root then goes ahead, an ordinary user is given the command. On a
    terminal both are asked, and an ordinary user's apt-get runs through sudo.
    Raises NotReady where they can't be installed, NotConfirmed when the answer is no.
    """
    lacking = missing(driver=driver)
    if not lacking:
        return
    by_hand = install_command(lacking)
    say("Missing system packages:")
    for package in lacking:
        say(f"  {package.name}: {package.use}")
    privileged = os.geteuid() == 0
    if not _has("apt-get"):
        raise NotReady("system packages are missing, and there is no apt-get to install them", hint=by_hand)
    if not privileged and (ask is None or not _has("sudo")):
        raise NotReady("installing system packages takes root's rights", hint=f"Run: {by_hand}")
    if ask is not None and not ask("Install them now with apt-get?"):
        raise NotConfirmed("nothing was installed", hint=f"By hand: {by_hand}")
    say("Installing them with apt-get ...")
    _install(lacking, by_hand=by_hand, privileged=privileged)
    if still := missing(driver=driver):
        names = ", ".join(package.name for package in still)
        raise NotReady(
            f"apt-get ended well, but these are still missing: {names}", hint=f"By hand: {by_hand}"
        )


def _has(program: str) -> bool:
    try:
        process.which(program)
    except ToolMissing:
        return False
    return True


def _install(packages: Sequence[Package], *, by_hand: str, privileged: bool) -> None:
    """Run apt-get with the environment's proxy; an ordinary user's through sudo, on the terminal."""
    env = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    names = [package.name for package in packages]
    for words in (["update"], ["install", "-y", "--no-install-recommends", *names]):
        apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", *words]
        try:
            if privileged:
                process.run(apt, env=env, deadline_s=_INSTALL_DEADLINE_S)
            elif process.terminal(["sudo", *apt], env=env) != 0:
                raise NotReady(
                    "apt-get could not install them; its message is above", hint=f"By hand: {by_hand}"
                )
        except ToolFailed as failure:
            cause = str(failure)
            raise NotReady(
                "apt-get could not install them", cause=cause, hint=f"By hand: {by_hand}"
            ) from failure
