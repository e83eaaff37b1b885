"""How a person restarts the sandbox daemon: by its unit where that is installed, for sbx would start one outside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

UNIT_FILE: Final = Path("/etc/systemd/system/sbx-daemon.service")


def command(*, root: Path = Path("/")) -> str:
    """Return the command, in backticks, as a hint names it."""
    if not (root / UNIT_FILE.relative_to("/")).exists():
        return "`sbx daemon restart`"
    return f"`{'' if os.geteuid() == 0 else 'sudo '}systemctl restart {UNIT_FILE.name}`"


COMMAND: Final = command()
MENDS: Final = f"{COMMAND} mends most of this; it stops every sandbox. `sbx diagnose` tells more."
BRINGS_BACK: Final = f"{COMMAND} may bring it back; it stops every sandbox."
