"""The documents say what the code does: links, commands, the error table."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from troupe_tasks import errors

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(?:sh|console|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(?:\./)?troupe (.+)$", re.MULTILINE)
INLINE = re.compile(r"`(?:\./)?troupe ([a-zA-Z][^`]*)`")
LAUNCHER_ONLY = ("test",)
PLACEHOLDERS = {
    "ID": "mr-doyle",
    "NAME": "Mr. Doyle",
    "TYPE": "hermes",
    "SERVICE": "openrouter",
    "KEY": "timezone",
}


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=shown)
def test_every_page_can_be_reached_by_a_link(page: Path) -> None:
    others = [other for other in PAGES if other != page]
    links = {
        (other.parent / target.partition("#")[0]).resolve()
        for other in others
        for target in LINK.findall(other.read_text(encoding="utf-8"))
    }
    assert page in links


def test_the_error_page_is_the_error_tree() -> None:
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == errors.page()


def commands() -> list[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(BLOCK.findall(text))
        for line in [*COMMAND.findall(blocks), *INLINE.findall(re.sub(BLOCK, "", text))]:
            found.add((shown(page), line))
    return sorted(found)


def hints() -> list[tuple[str, str]]:
    """Return what troupe itself tells people to run: every command in a text of its code that is no docstring."""
    return sorted({(shown(module), line) for module, text in texts() for line in INLINE.findall(text)})


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every text of the code that is no docstring."""
    for module in sorted((ROOT / "troupe_tasks").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        yield from ((module, text) for node in nodes if id(node) not in parts and (text := text_of(node)))


def text_of(node: ast.AST) -> str:
    """Return a text in the code, what is filled in standing as ID."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            "ID" if isinstance(part, ast.FormattedValue) else text_of(part) for part in node.values
        )
    return ""


@pytest.mark.parametrize(("page", "line"), [*commands(), *hints()])
def test_every_command_that_people_are_told_of_parses(page: str, line: str) -> None:
    from invoke.parser import Parser

    from troupe_tasks.cli import normalise
    from troupe_tasks.namespace import namespace

    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(PLACEHOLDERS.get(word, word))
    if words[0] in LAUNCHER_ONLY or words[0].startswith("-") or line.split(maxsplit=1)[0].isupper():
        return
    if len(words) == 1:  # named, not called
        assert words[0] in {*namespace.task_names, *namespace.collections}, page
        return
    argv = normalise(words, namespace)
    if argv[0] != "--help":
        Parser(contexts=namespace.to_contexts()).parse_argv(argv)


def test_every_message_that_is_looked_up_is_one() -> None:
    page = (ROOT / "docs" / "when-something-fails.md").read_text(encoding="utf-8")
    programs = [(ROOT / name).read_text(encoding="utf-8") for name in ("troupe", "install.sh")]
    said = "\n".join([*(text for _, text in texts()), *programs])
    looked_up = re.findall(r"^\| (`+) ?(.+?) ?\1[ ,|]", page, re.MULTILINE)
    assert len(looked_up) > 30
    for _, message in looked_up:
        parts = (part.strip(" `.()") for part in re.split(r"…|mr-doyle|[0-9]+|: ", message))
        assert not [part for part in parts if part and part not in said], message


def test_every_command_is_in_the_documents() -> None:
    from troupe_tasks.namespace import namespace

    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [name for name in namespace.task_names if f"troupe {name.replace('.', ' ')}" not in text]
    assert not missing
