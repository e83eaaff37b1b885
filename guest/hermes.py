"""Have Hermes back itself up, prove the file, and write it to stdout: hermes.py NONCE FOLDER WORDS...

{file} in the words is replaced by a path in a scratch folder below FOLDER. `hermes backup` ends with status 0 when
it is incomplete, so its words are read, every member of the zip is, and SQLite checks each database. The report is
for `archive.py told NONCE`. It runs inside the sandbox, as the agent's own user, on the image's Python.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
import zlib

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I leaves it out

from sending import CHUNK, Beating, Out, Scratch, check_database, reported, room

COMPLETE = b"Backup complete:"


def prove(path, scratch):
    """Read every member of the zip and have SQLite check its databases. Raises ValueError."""
    try:
        with zipfile.ZipFile(os.fsdecode(path)) as archive:
            bad = archive.testzip()
            if bad is not None:
                raise ValueError(f"the backup's member {bad!r} is damaged")
            for number, member in enumerate(archive.infolist()):
                if member.filename.endswith(".db"):
                    copy = os.path.join(scratch, b"%d.db" % number)
                    with archive.open(member) as source, open(copy, "wb") as target:
                        shutil.copyfileobj(source, target, CHUNK)
                    try:
                        check_database(copy)
                    except (sqlite3.Error, ValueError) as error:
                        raise ValueError(f"the backup's database {member.filename!r}: {error}") from None
                    os.remove(copy)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the backup does not read as a zip: {error}") from None


def back_up(folder, words):
    """Make the backup, write it to stdout, and return the report."""
    scratch = Scratch(folder)
    try:
        path = os.path.join(scratch.path, b"hermes.zip")
        command = [word.replace("{file}", os.fsdecode(path)) for word in words]
        with Beating():
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode != 0 or COMPLETE not in done.stdout:
                said = " ".join(done.stdout.decode("utf-8", "backslashreplace").split())[-300:]
                raise ValueError(f"Hermes's own backup is not complete (status {done.returncode}): {said}")
            prove(path, scratch.path)
        out = Out()
        with open(path, "rb", buffering=0) as file:
            buffer = room()
            while count := file.readinto(buffer):
                out.write(memoryview(buffer)[:count])
        out.flush()
        return {"stream": out.told()}
    finally:
        scratch.remove()


if __name__ == "__main__":
    nonce, folder, *words = sys.argv[1:]
    sys.exit(reported(nonce, lambda: back_up(os.fsencode(folder), words)))
