"""Compare the agent's seeded files with its kit's (look), or bring them up to date (apply): seeds.py WORK HOME.

`look` reads {"PATH": [OLD, NEW]} on stdin, the SHA-256 of the seed in the kit version that it has and in the one that
it gets, null where there is none, and prints {"PATH": STATE}: absent, new, old, edited, large (edited, and too large to
be kept elsewhere), or odd (not a plain file). `apply` reads {"PATH": {"data": BASE64, "mode": 384} or null}: writes the
file, or removes it. What is odd or large is moved aside, to PATH.before. It runs inside the sandbox, as the agent's own
user, on the image's Python.
"""

import base64
import hashlib
import json
import os
import stat
import sys

CAP = 8 << 20
LARGE = 4 << 20  # as troupe_tasks/operations/seeding.py keeps


def state(path, old, new):
    """Return what a seed's place holds."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    if not stat.S_ISREG(status.st_mode):
        return "odd"
    if status.st_size > LARGE:
        return "large"
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    found = digest.hexdigest()
    return "new" if found == new else "old" if found == old else "edited"


def write(path, data, mode):
    """Replace a file in one rename; folders on the way are made, and what stands in their place moved aside."""
    folder = os.path.dirname(path)
    make_folder(folder)
    if os.path.lexists(path):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGE:
            put_aside(path)
    beside = f"{path}.new"
    if os.path.lexists(beside):
        os.unlink(beside)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def make_folder(folder):
    """Make a folder and those above it."""
    if os.path.isdir(folder):
        return
    make_folder(os.path.dirname(folder))
    if os.path.lexists(folder):
        put_aside(folder)
    os.mkdir(folder, 0o700)


def put_aside(path):
    """Give what stands at a path another name there, the first that is free."""
    number, aside = 1, f"{path}.before"
    while os.path.lexists(aside):
        number, aside = number + 1, f"{path}.before{number + 1}"
    os.rename(path, aside)


def look(home, asked):
    """Print the state of every seed's place."""
    print(json.dumps({path: state(os.path.join(home, path), *digests) for path, digests in asked.items()}))


def apply(home, wanted):
    """Write and remove."""
    for path, file in wanted.items():
        place = os.path.join(home, path)
        if file is not None:
            write(place, base64.b64decode(file["data"]), file["mode"])
        elif os.path.lexists(place):
            os.unlink(place)


if __name__ == "__main__":
    {"look": look, "apply": apply}[sys.argv[1]](sys.argv[2], json.loads(sys.stdin.read(CAP)))
