"""Tab completion: what a shell does with the script that troupe prints."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ASK = """
PATH={folder}:$PATH
source <(troupe --print-completion-script bash)
function=$(complete -p troupe | grep -o '_[a-z_]*')
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
$function troupe "${{COMP_WORDS[-1]}}" ''
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for PATH with a `troupe` in it, as a link to the launcher would be."""
    script = f'#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {sys.executable} -m troupe_tasks "$@"\n'
    (tmp_path / "troupe").write_text(script, encoding="utf-8")
    (tmp_path / "troupe").chmod(0o755)
    return tmp_path


def offered(folder: Path, words: str) -> set[str]:
    script = ASK.format(folder=shlex.quote(str(folder)), words=words)
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_a_part_of_a_command_offers_the_commands_that_begin_so(folder: Path) -> None:
    assert offered(folder, "troupe st") == {"start", "status", "stop"}


def test_dashes_offer_the_flags_of_the_command(folder: Path) -> None:
    assert {"--json", "--debug"} <= offered(folder, "troupe status --")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_for_this_name_that_it_accepts(folder: Path, shell: str) -> None:
    done = subprocess.run(
        [folder / "troupe", f"--print-completion-script={shell}"],
        capture_output=True, encoding="utf-8", timeout=60, check=True,
    )  # fmt: skip
    assert re.search(r"\btroupe\b.* --complete\b", done.stdout)
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=done.stdout, encoding="utf-8", timeout=60, check=True)
