"""Archive and restore 100,000 small files and a sparse file of 5 GiB. Goal: the same manifest, and no holes sent.

Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_archive_many.py; FILES (100000) is how many. It takes minutes, most
of them gVisor's: each file is a few calls of the sandbox's kernel, and holes have to be read there to be seen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.bench import stage
from tests.bench.bench_archive import ID, sandbox, taken, took_s
from troupe_tasks.archives import inside
from troupe_tasks.archives.put import put

FILES = int(os.environ.get("FILES", "100000"))
_HOURS_S = 4 * 3600.0
_FILL = f"""\
import os
os.chdir("/workspace")
for folder in range({FILES} // 1000):
    os.mkdir(str(folder))
    for number in range(1000):
        with open(f"{{folder}}/{{number}}", "w") as file:
            file.write(f"{{number}}\\n" * 20)
with open("sparse", "wb") as file:
    file.truncate(5 << 30)
    file.seek(1 << 30)
    file.write(b"x" * 4096)
"""


def main() -> int:
    """Print what each part takes; fail when what comes back is not the same."""
    stage.asked(__doc__, rounds=1)
    with stage.house() as house:
        driver, folder = sandbox(house), house.paths.state / ID
        words = ["/usr/bin/python3", "-I", "-S", "-c", _FILL]
        fill_s = took_s(lambda: driver.run(ID, words, deadline_s=_HOURS_S))
        measure_s = took_s(lambda: inside.measure(driver, ID))
        take_s = took_s(lambda: taken(driver, folder))
        archive = taken(driver, Path(f"{folder}-again"))
        again = archive.manifest
        put_s = took_s(
            lambda: put(
                driver, ID, Path(f"{folder}-again"), archive, deadline_s=_HOURS_S, reserve=lambda: 1 << 40
            )
        )
        same = inside.survey(driver, ID, deadline_s=_HOURS_S).same(again)
    sent_mib = archive.parts[0].bytes >> 20
    print(f"{again.files} files, {again.bytes >> 20} MiB of which {sent_mib} MiB were sent (with headers)")
    print(
        f"made in {fill_s:.0f} s, measured {measure_s:.0f} s, archived {take_s:.0f} s, restored {put_s:.0f} s"
    )
    return 0 if same and again.files == FILES + 1 and sent_mib < 400 else 1


if __name__ == "__main__":
    sys.exit(main())
