"""Two boots of one guest, whose own reports the tests of this folder look up."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.guest import machine
from troupe_tasks import process

BOOTS = (("services", "limits", "daemon"), ("reboot", "daemon_again", "installing"))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ET.Element]:
    """Boot the guest twice and return every test case that ran inside, by its file and name."""
    if reason := machine.missing():
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("guest")
    base = machine.ensure_base(Path(os.environ.get("TROUPE_TEST_HOME", work)) / "guest")
    disk = work / "disk.ext4"
    process.run(["cp", "--sparse=always", base.disk, disk], deadline_s=120)
    found: dict[str, ET.Element] = {}
    try:
        for number, names in enumerate(BOOTS, start=1):
            code = work / f"code-{number}.tar"
            machine.code_disk(code, names)
            boot = machine.boot(base, disk, code=code, logs=work / f"boot-{number}")
            print(f"\nboot {number} took {boot.took_s:.0f} s\n{boot.said}")
            for name, report in boot.reports.items():
                cases = ET.fromstring(report).iter("testcase")  # noqa: S314 - our own guest's pytest wrote it
                found |= {f"{name}:{case.get('name')}": case for case in cases}
    finally:
        disk.unlink()
    return found
