"""Every test that ran inside the guest is one test here; what it printed is shown when it failed."""

from __future__ import annotations

import ast
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.guest.conftest import BOOTS

pytestmark = pytest.mark.timeout(5600)  # under emulation two boots take half an hour


def _names() -> list[str]:
    found: list[str] = []
    for module in (name for names in BOOTS for name in names):
        source = Path(__file__).with_name("inside") / f"{module}.py"
        tree = ast.parse(source.read_text(encoding="utf-8"))
        found += [
            f"{module}:{node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
    return found


@pytest.mark.parametrize("name", _names())
def test_inside(name: str, results: dict[str, ET.Element]) -> None:
    assert name in results, "it did not run; the guest ended early"
    case = results[name]
    said = "\n".join(case.findtext(part) or "" for part in ("failure", "error", "system-out"))
    if said.strip():
        print(said)
    assert case.find("failure") is None, said
    assert case.find("error") is None, said
