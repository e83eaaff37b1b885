"""Three boots of a guest with a software TPM; what ran inside is looked up by the tests of this folder.

The second boot is the same machine after a restart. The third has the first one's disk, as it was then, and no TPM.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

BOOTS = ("seal", "again", "moved")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ET.Element]:
    """Boot three times and return every test case that ran inside, by its file and name."""
    from tests.guest import machine
    from tests.tpm import boots

    if reason := boots.missing():
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("tpm")
    base = machine.ensure_base(
        Path(os.environ.get("TROUPE_TEST_HOME", work)) / "guest", packages=boots.PACKAGES
    )
    disk, moved = work / "disk.ext4", work / "moved.ext4"
    found: dict[str, ET.Element] = {}
    try:
        boots.copy(base.disk, disk)
        with boots.tpm(work / "chip") as chip:
            found |= boots.boot("seal", base, disk, work=work, devices=chip)
        boots.copy(disk, moved)
        with boots.tpm(work / "chip") as chip:
            found |= boots.boot("again", base, disk, work=work, devices=chip)
        found |= boots.boot("moved", base, moved, work=work, devices=())
    finally:
        disk.unlink(missing_ok=True)
        moved.unlink(missing_ok=True)
    return found
