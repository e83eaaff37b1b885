"""Build what all tests with sandboxes share, gVisor and the kit's image, in the HOME that is the only argument."""

from __future__ import annotations

import sys

from troupe_tasks.host import apt
from troupe_tasks.kits import image, local
from troupe_tasks.paths import Paths

if __name__ == "__main__":
    stock = Paths.from_env({"HOME": sys.argv[1]})
    apt.ensure_runsc(stock, print)
    image.ensure_image(local.find("hermes"), stock, print)
