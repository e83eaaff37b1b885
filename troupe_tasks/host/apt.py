"""Debian as a source: its mirrors, and gVisor's `runsc` fetched from it.

`runsc` is taken from Debian 13, whatever Debian or Ubuntu this is: Debian 12's is broken (listing a folder
fails inside) and Ubuntu has none. It is one static program. apt checks the archive's signature with
Debian's own keyring, in folders of ours, as an ordinary user too; nothing of the machine's own apt is
changed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable, locks, process
from troupe_tasks.errors import NotReady, ToolFailed, ToolMissing
from troupe_tasks.paths import Paths

Progress = Callable[[str], None]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE = "trixie"
_DEFAULT = "http://deb.debian.org/debian"
_DEFAULT_SECURITY = "http://deb.debian.org/debian-security"
_DEADLINE_S = 180
# What a machine behind a proxy, or with an authority of its own, needs told to programs that fetch.
_NETWORK_VARIABLES = (
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_INDEX_URL", "PIP_PROXY",
)  # fmt: skip


@dataclass(frozen=True)
class Mirrors:
    """Where Debian is fetched from."""

    main: str
    security: str

    def lines(self, suite: str) -> list[str]:
        """Return the sources.list lines of a suite with its updates."""
        signed = f"[signed-by={KEYRING}]"
        return [
            f"deb {signed} {self.main} {suite} main",
            f"deb {signed} {self.main} {suite}-updates main",
            f"deb {signed} {self.security} {suite}-security main",
        ]


def network_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the proxy and certificate variables of env, for the programs that fetch."""
    return {name: env[name] for name in _NETWORK_VARIABLES if env.get(name)}


def mirrors() -> Mirrors:
    """Return the mirrors that this machine's own apt uses for Debian, else Debian's."""
    uris = _own_uris()
    main = next((uri for uri in uris if uri.endswith("/debian")), _DEFAULT)
    security = next((uri for uri in uris if uri.endswith("/debian-security")), _DEFAULT_SECURITY)
    return Mirrors(main=main, security=security)


def _own_uris() -> list[str]:
    try:
        done = process.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], deadline_s=10, ok=None)
    except ToolMissing:
        return []
    text = done.stdout.decode(errors="replace")
    return [uri.rstrip("/") for uri in text.split() if re.fullmatch(r"https?://[\w.:/~%-]+", uri)]


def keyring() -> Path:
    """Return Debian's keyring, or say which package brings it."""
    if not KEYRING.is_file():
        hint = "Install the package debian-archive-keyring, then run the command again."
        raise NotReady(f"Debian's keyring {KEYRING} is not there", hint=hint)
    return KEYRING


def ensure_runsc(paths: Paths, progress: Progress, *, source: Mirrors | None = None) -> Path:
    """Return gVisor's runsc, fetched into troupe's own tools folder if it is not there yet.

    Raises NotReady when it cannot be fetched. Whether it works here is for the sandbox driver to prove.
    """
    link = paths.tools / "runsc"
    durable.make_private_dir(paths.tools)
    if _intact(link):
        return link
    with locks.named(paths, "runsc", wait_s=_DEADLINE_S):
        if not _intact(link):
            progress("Fetching gVisor (runsc) from Debian 13")
            _fetch(paths.tools, link, source or mirrors())
    return link


def _intact(link: Path) -> bool:
    """Tell whether the program is there with its recorded size (verify_runsc reads it all)."""
    try:
        size, _ = durable.read_private(link.resolve().with_name("runsc.sum")).decode().split()
        return link.is_file() and link.stat().st_size == int(size)
    except (FileNotFoundError, ValueError):
        return False


def verify_runsc(link: Path) -> bool:
    """Tell whether the program still has the digest it had when it was unpacked (reads all of it: 0.1 s)."""
    try:
        _, digest = durable.read_private(link.resolve().with_name("runsc.sum")).decode().split()
    except (FileNotFoundError, ValueError):
        return False
    return _sha256(link) == digest


def _fetch(tools: Path, link: Path, source: Mirrors) -> None:
    work = tools / ".fetching"
    durable.remove_tree(work)
    try:
        package, version = _download(work, source)
        _install(package, version, tools, link)
    except ToolFailed as error:
        hint = (
            "Check the network (http_proxy, if you need one) and run it again; or install Debian 13's runsc."
        )
        raise NotReady(
            "gVisor's runsc could not be fetched from Debian", cause=str(error), hint=hint
        ) from error
    finally:
        durable.remove_tree(work)


def _download(work: Path, source: Mirrors) -> tuple[Path, str]:
    for name in ("lists/partial", "cache/archives/partial", "etc", "deb"):
        durable.make_private_dir(work / name)
    sources = work / "etc" / "sources.list"
    line = f"deb [signed-by={keyring()}] {source.main} {SUITE} main\n"
    durable.write(sources, line.encode())
    durable.write(work / "status", b"")
    options = [
        f"Dir::State={work}", f"Dir::State::lists={work}/lists", f"Dir::State::status={work}/status",
        f"Dir::Cache={work}/cache", f"Dir::Etc::sourcelist={sources}", "Dir::Etc::sourceparts=/dev/null",
        "Dir::Etc::preferencesparts=/dev/null", "Acquire::Languages=none", "Acquire::Retries=2",
        "Acquire::http::Timeout=20", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        "APT::Architecture=amd64", "APT::Get::AllowUnauthenticated=false", "APT::Update::Error-Mode=any",
        *(["APT::Sandbox::User=root"] if os.geteuid() == 0 else []),
    ]  # fmt: skip
    apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    process.run([*apt, "update"], env=network_env(), deadline_s=_DEADLINE_S)
    process.run([*apt, "download", "runsc"], env=network_env(), cwd=work / "deb", deadline_s=_DEADLINE_S)
    found = list((work / "deb").glob("runsc_*.deb"))
    if len(found) != 1:
        raise NotReady("Debian's archive brought no runsc", cause=f"{len(found)} packages were fetched")
    shown = process.run(["dpkg-deb", "--field", found[0], "Version"], deadline_s=20).stdout.decode().strip()
    return found[0], re.sub(r"[^0-9A-Za-z.+~-]", "_", shown)


def _install(package: Path, version: str, tools: Path, link: Path) -> None:
    tree = package.parent / "tree"
    process.run(["dpkg-deb", "-x", package, tree], deadline_s=60)
    program = tree / "usr" / "bin" / "runsc"
    new = package.parent / "new"
    durable.make_private_dir(new)
    program.replace(new / "runsc")
    # Other users run it too: an agent's own host uid, once the driver shows it the file.
    (new / "runsc").chmod(0o755)
    new.chmod(0o711)
    summary = f"{(new / 'runsc').stat().st_size} {_sha256(new / 'runsc')}\n"
    durable.write(new / "runsc.sum", summary.encode())
    process.run(["sync", "-f", new / "runsc"], deadline_s=60)
    home = tools / f"runsc-{version}"
    durable.remove_tree(home)
    new.rename(home)
    temporary = tools / ".runsc.new"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(f"{home.name}/runsc")
    temporary.replace(link)
    durable.sync_dir(tools)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
