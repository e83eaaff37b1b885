"""The rules of this house that no linter knows; each exception is named, with its reason."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from troupe_tasks.host.packages import PACKAGES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "troupe_tasks"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)
SOURCES = sorted(
    [
        *MODULES,
        *(ROOT / "guest").glob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        ROOT / "noxfile.py",
        ROOT / "troupe",
    ]
)
MAX_LINES = 400
MAX_TEST_LINES = 600  # a suite is read a test at a time

STARTS_PROGRAMS = {
    "process.py": "it is the seam",
    "sandbox/capsule/enter.py": "it runs without the package, and becomes the command inside a sandbox",
    "sandbox/sbx/outside.py": "it runs by its path, and holds a sandbox's way out open",
    "services/launch.py": "it runs without the package, and becomes the service",
    "services/relay.py": "it runs without the package, and stands before a service",
}
WRITES_FILES = {
    "durable.py": "it is the seam",
    "errors.py": "its main writes a page of the documents, for a developer",
    "egress/audit.py": "a log is appended to, not replaced",
    "sandbox/capsule/enter.py": "a control file of the kernel is not state",
    "kits/image.py": "it builds in a folder that is seen only after its rename",
}
PROGRAM_STARTERS = {"sh", "pty", "multiprocessing"}
# The name subprocess.Popen may be used as the type of what the seam returns.
STARTING_CALL = re.compile(
    r"(os\.(system|popen|fork|forkpty|exec\w+|spawn\w+|posix_spawn\w*)"
    r"|(subprocess\.)?(Popen|check_call|check_output|getoutput)|subprocess\.(run|call))"
)
SECRETIVE = re.compile(r"secret|token|passw|api_?key|credential", re.IGNORECASE)
# Not asyncio: Invoke itself brings it.
HEAVY = ("cryptography", "h11", "pydantic", "rich", "sh", "supervisor", "tomlkit")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def inside(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node


def called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_only_the_process_seam_starts_programs() -> None:
    found = [
        f"{inside(path)}: {what}"
        for path in MODULES
        if inside(path) not in STARTS_PROGRAMS
        for what in [
            *(imports(path) & PROGRAM_STARTERS),
            *filter(STARTING_CALL.fullmatch, map(called, calls(path))),
        ]
    ]
    assert not found


def writes(call: ast.Call) -> bool:
    name = called(call)
    if name.endswith((".write_text", ".write_bytes")):
        return True
    if name != "open" and not name.endswith(".open"):
        return False
    if any(word.arg == "fileobj" for word in call.keywords):  # an archive in memory
        return False
    modes = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    return any(
        isinstance(mode, ast.Constant)
        and isinstance(mode.value, str)
        and re.fullmatch(r"[wax][bt+]*", mode.value)
        for mode in modes
    )


def test_only_the_durable_seam_writes_files() -> None:
    found = [
        f"{inside(path)}:{call.lineno}: {called(call)}"
        for path in MODULES
        if inside(path) not in WRITES_FILES
        for call in calls(path)
        if writes(call)
    ]
    assert not found


def argument_names(call: ast.Call) -> Iterator[str]:
    """Yield each name inside the argument lists of a call that starts something."""
    if called(call).rsplit(".", 1)[-1] not in {"run", "spawn", "terminal", "become", "stream", "attach"}:
        return
    for words in call.args:
        if isinstance(words, ast.List | ast.Tuple):
            for node in ast.walk(words):
                if isinstance(node, ast.Name):
                    yield node.id
                elif isinstance(node, ast.Attribute):
                    yield node.attr


def test_no_secret_is_named_in_an_argument_list() -> None:
    found = [
        f"{inside(path)}:{call.lineno}: {name}"
        for path in MODULES
        for call in calls(path)
        for name in argument_names(call)
        if SECRETIVE.search(name)
    ]
    assert not found


def test_no_file_is_longer_than_a_person_reads() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in SOURCES
    }
    caps = {name: MAX_TEST_LINES if name.startswith("tests/") else MAX_LINES for name in lengths}
    assert not {name: lines for name, lines in lengths.items() if lines > caps[name]}


@pytest.mark.parametrize("named", sorted({*STARTS_PROGRAMS, *WRITES_FILES}))
def test_every_exception_still_exists(named: str) -> None:
    assert (PACKAGE / named).is_file()


def namespace_tasks() -> dict[str, str]:
    from troupe_tasks.namespace import namespace

    return {name: namespace[name].__doc__ or "" for name in namespace.task_names}


def test_every_command_shows_an_example_of_itself() -> None:
    for name, text in namespace_tasks().items():
        first = name.split(".")[0]
        assert re.search(rf"^Example: troupe {first}\b", text, re.MULTILINE), name


def test_every_command_takes_json_and_debug() -> None:
    from troupe_tasks.namespace import namespace

    for name in namespace.task_names:
        flags = {str(argument.name) for argument in namespace[name].get_arguments()}
        assert flags >= {"json", "debug"}, name


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, runpy\n"
        "sys.argv = ['troupe', '--help']\n"
        "try:\n    runpy.run_module('troupe_tasks', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "kits/hermes/requirements.lock"]
)
def test_a_lock_file_pins_hashes_everything_and_names_no_host(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(
        r"://|^\s*-", re.sub(r"^\s*--hash=sha256:[0-9a-f]{64}( \\)?$", "", text, flags=re.MULTILINE)
    )
    blocks = re.split(
        r"^(?=[A-Za-z0-9])", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE
    )
    for block in filter(str.strip, blocks):
        assert PINNED.match(block), block[:60]
        assert "--hash=sha256:" in block, block[:60]


def test_the_tests_run_against_the_versions_that_people_run() -> None:
    run, dev = (
        dict(PINNED.findall((ROOT / name).read_text(encoding="utf-8")))
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert run.items() <= dev.items()


def declared() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [re.split(r"[<>=!~\[ ]", line, maxsplit=1)[0] for line in wanted]


@pytest.mark.parametrize("name", declared())
def test_every_dependency_is_locked_and_has_its_reason_written_down(name: str) -> None:
    assert name in dict(PINNED.findall((ROOT / "requirements-dev.lock").read_text(encoding="utf-8")))
    assert f"`{name}`" in (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")


def test_ci_installs_what_a_person_is_told_to_and_runs_the_command_that_the_readme_gives() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for package in PACKAGES:
        assert re.search(rf"\b{re.escape(package.name)}\b", script), package.name
    assert script.splitlines()[-1] == "exec ./troupe test </dev/null"
    assert "./troupe test" in (ROOT / "README.md").read_text(encoding="utf-8")
