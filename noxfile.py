"""Check everything: `./troupe test` runs the sessions marked default, `./troupe test -s bench` another.

Sessions run in the environment that runs Nox (.venv-dev, hash-locked by requirements-dev.lock): nothing is
installed a second time. The last lines printed say what was not run and why, and count every test.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

import nox

ROOT = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
REPORTS = ROOT / ".nox" / "reports"
# The kit image and gVisor, which the sessions with sandboxes share and a second run finds again.
HOUSE = ROOT / ".nox" / "house"
DEFAULT = ["lint", "docs", "unit", "model", "contract", "integration"]

nox.needs_version = ">=2025.10.16"
nox.options.default_venv_backend = "none"
nox.options.sessions = DEFAULT


@dataclass
class Totals:
    """What the sessions of this run came to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    why: Counter[str] = field(default_factory=Counter)
    sessions: list[str] = field(default_factory=list)

    def show(self) -> None:
        """Print what was not run, with the reason, and the closing line."""
        if not self.sessions:
            return
        if self.why:
            print("\nNot run here:")
            for reason, count in sorted(self.why.items()):
                print(f"  {count:4d} x {reason}")
        if left := sorted({"bench", "chaos", "guest", "keys", *DEFAULT} - set(self.sessions)):
            print(f"\nSessions not asked for: {', '.join(left)} (`./troupe test -s NAME` runs one)")
        print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)


TOTALS = Totals()
atexit.register(TOTALS.show)


def check(session: nox.Session, name: str, *argv: str | Path) -> bool:
    """Run one check as a test of its own: counted, and the session goes on when it fails."""
    try:
        session.run(*[str(word) for word in argv], external=True)
    except nox.command.CommandFailed:
        session.warn(f"{name}: FAILED")
        TOTALS.failed += 1
        return False
    TOTALS.passed += 1
    return True


# As many at once as there are processors, up to four: most of a test's time is a program's that it waits for.
SIDE_BY_SIDE = ("-n", str(min(4, len(os.sched_getaffinity(0)))), "--dist", "loadfile")


def tests(session: nox.Session, *argv: str) -> None:
    """Run pytest and add its counts, and the reasons of what it skipped, to the totals."""
    TOTALS.sessions.append(session.name)
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{session.name}.xml"
    report.unlink(missing_ok=True)
    try:
        session.run(
            sys.executable, "-X", "warn_default_encoding", "-m", "pytest",
            f"--junitxml={report}", *argv, *session.posargs,
            external=True, env={"TROUPE_TEST_HOME": os.environ.get("TROUPE_TEST_HOME", str(HOUSE))},
        )  # fmt: skip
    finally:
        count(report)


def count(report: Path) -> None:
    """Add one pytest report to the totals; a session that wrote none is one failure."""
    if not report.exists():
        TOTALS.failed += 1
        return
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            TOTALS.failed += 1
        elif skipped is not None:
            TOTALS.skipped += 1
            TOTALS.why[skipped.get("message") or "no reason given"] += 1
        else:
            TOTALS.passed += 1


def build_stock() -> None:
    """Build the image that the later sessions share while the first ones leave a processor idle.

    Only in a run of everything. Whoever needs the image waits for it, and builds it where this could not.
    """
    if {"-s", "--session", "--sessions"} & set(sys.argv):
        return
    REPORTS.mkdir(parents=True, exist_ok=True)
    HOUSE.mkdir(mode=0o700, exist_ok=True)
    with (REPORTS / "stock.log").open("wb") as log:
        building = subprocess.Popen(
            [sys.executable, "-m", "tests.stock", os.environ.get("TROUPE_TEST_HOME", str(HOUSE))],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    atexit.register(building.terminate)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, import contracts, scripts, spelling and dependencies."""
    TOTALS.sessions.append(session.name)
    build_stock()
    python = sys.executable
    scripts = [path for path in ("troupe", ".ci/run", "install.sh") if (ROOT / path).exists()]
    done = [
        check(session, "ruff", python, "-m", "ruff", "check", "."),
        check(session, "format", python, "-m", "ruff", "format", "--check", "."),
        check(session, "types", python, "-m", "mypy"),
        check(
            session, "imports", python, "-c", "from importlinter.cli import lint_imports_command as c; c()"
        ),
        check(session, "shellcheck", BIN / "shellcheck", *scripts),
        check(session, "spelling", python, "-m", "codespell_lib", "."),
        check(session, "dependencies", python, "-m", "deptry", "."),
    ]
    if not all(done):
        session.error("lint found something; it is above")


@nox.session
def docs(session: nox.Session) -> None:
    """Check that the documents' links, commands and error table are those of the code."""
    tests(session, "tests/docs", "-q")


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests."""
    tests(session, "tests/unit", "-q", *SIDE_BY_SIDE)


@nox.session
def model(session: nox.Session) -> None:
    """Run the moves on a stage: every fault, and random walks for a quarter of a minute."""
    tests(session, "tests/model", "-q", *SIDE_BY_SIDE)


@nox.session
def contract(session: nox.Session) -> None:
    """Run the one suite that every sandbox driver passes, against each driver this machine can run."""
    tests(session, "tests/contract", "-q", "-m", "not chaos", *SIDE_BY_SIDE)


@nox.session
def integration(session: nox.Session) -> None:
    """Run real agents in real sandboxes through their whole life; `-- --driver sbx`: on this machine's own sbx."""
    if "--driver" in session.posargs:  # one after another: each sandbox is a virtual machine
        tests(session, "tests/integration", "tests/contract", "-q", "--durations=10", "-o", "timeout=900")
        return
    tests(session, "tests/integration", "-q", "-m", "not chaos", "--durations=10", *SIDE_BY_SIDE)


@nox.session
def chaos(session: nox.Session) -> None:
    """Walk at random for half an hour (TROUPE_SECONDS), fail and kill at every call, and run all else as well."""
    session.env["TROUPE_SECONDS"] = os.environ.get("TROUPE_SECONDS", "1800")
    tests(session, "tests/model", "tests/contract", "tests/integration", "-q", "-s", "--durations=10")


@nox.session
def guest(session: nox.Session) -> None:
    """Boot a Debian 13 guest under QEMU: the units under a real systemd, and the limits on a real cgroup v2."""
    tests(session, "tests/guest", "-q", "-s")


@nox.session
def keys(session: nox.Session) -> None:
    """Boot a Debian 13 guest with a software TPM under QEMU: keys sealed and opened by a real systemd."""
    tests(session, "tests/tpm", "-q", "-s")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what tests/bench holds, as ratios within one run; each script says its goal."""
    TOTALS.sessions.append(session.name)
    scripts = sorted((ROOT / "tests" / "bench").glob("bench_*.py"))
    results = [check(session, script.name, sys.executable, script, *session.posargs) for script in scripts]
    if not all(results):
        session.error("a figure is out of its bounds; it is above")


@nox.session
def lock(session: nox.Session) -> None:
    """Write both lock files anew from pyproject.toml (needs uv): the newest versions that it admits."""
    uv = shutil.which("uv") or session.error("uv is not installed: `pipx install uv`")
    common = (
        str(uv), "pip", "compile", "--quiet", "--no-config", "--upgrade", "--generate-hashes", "--universal",
        "--python-version", "3.11", "--no-emit-index-url",
        "--custom-compile-command", "./troupe test -s lock", "pyproject.toml",
    )  # fmt: skip
    session.run(*common, "--output-file", "requirements.lock", external=True)
    session.run(
        *common, "--extra", "dev", "--constraint", "requirements.lock",
        "--output-file", "requirements-dev.lock", external=True,
    )  # fmt: skip


ADDRESS = re.compile(r"https://[0-9A-Za-z.:/_~-]+")


@nox.session
def release(session: nox.Session) -> None:
    """Build the last commit into dist/, always the same bytes; `-- --address https://HOST/FOLDER` is its address."""
    words = session.posargs
    address = words[1].rstrip("/") if len(words) == 2 and words[0] == "--address" else ""
    if words and not ADDRESS.fullmatch(address):
        session.error("it takes nothing but `--address https://HOST/FOLDER`")
    if git(session, "status", "--porcelain"):
        session.error("a release is what is committed, and something here is not: `git status`")
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder, "troupe")
        version = staged(session, stage, address)
        built = stage / "dist"
        epoch = git(session, "log", "-1", "--format=%ct")
        with session.chdir(stage):
            session.run(
                sys.executable, "-m", "hatchling", "build", "-d", built, "-t", "sdist", "-t", "wheel", external=True,
                env={"SOURCE_DATE_EPOCH": epoch},
            )  # fmt: skip
        for name in ("install.sh", "requirements.lock"):
            shutil.copy(stage / name, built)
        (built / "VERSION").write_text(f"{version}\n", encoding="ascii")
        sums = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in sorted(built.iterdir())
        ]
        (built / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(built, ROOT / "dist")
    print("".join(sums), end="")


def git(session: nox.Session, *words: str) -> str:
    said = session.run("git", "-C", str(ROOT), *words, external=True, silent=True, log=False)
    return str(said).strip()


def staged(session: nox.Session, stage: Path, address: str) -> str:
    """Put the last commit into a folder, stamped with what it is and where for, and return its version."""
    stage.mkdir()
    packed = stage.with_suffix(".tar")
    git(session, "archive", "--format=tar", f"--output={packed}", "HEAD")
    session.run("tar", "-xf", str(packed), "-C", str(stage), external=True, log=False)
    init = (stage / "troupe_tasks" / "__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', init, re.MULTILINE)[0]
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6}){2}", version):
        session.error(f"the version {version} is not of the form 1.2.3, by which an update compares it")
    stamp = {
        "address": address,
        "commit": git(session, "rev-parse", "--short=12", "HEAD"),
        "version": version,
    }
    (stage / "troupe_tasks" / "_data").mkdir()
    (stage / "troupe_tasks" / "_data" / "release.json").write_text(json.dumps(stamp) + "\n", encoding="ascii")
    installer = (stage / "install.sh").read_text(encoding="utf-8")
    if installer.count("\naddress=\n") != 1:
        session.error("install.sh has no line `address=` to put the address into")
    (stage / "install.sh").write_text(
        installer.replace("\naddress=\n", f"\naddress={address}\n"), encoding="utf-8"
    )
    return str(version)
