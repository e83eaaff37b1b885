"""Write findings as plain lines, grouped by kind."""

from __future__ import annotations

from collections.abc import Iterable

from troupe_tasks.doctor.finding import Finding, Kind
from troupe_tasks.text import escape


def lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the lines: a kind's name, a requirement a line ending in its verdict, what to do beneath."""
    many = tuple(findings)
    shown: list[str] = []
    for kind in Kind:
        mine = [finding for finding in many if finding.kind is kind]
        if mine:
            shown.append(kind.value)
        for finding in mine:
            shown.append(f"  {finding.requirement}: {_line(finding.detail)}: {finding.verdict.value}")
            if finding.todo:
                shown.append(f"    -> {_line(finding.todo)}")
    return tuple(shown)


def _line(text: str) -> str:
    return escape(text, keep_newlines=False)


def stops(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that keep `create` from going on: each action and each fail."""
    return tuple(finding for finding in findings if finding.stops)
