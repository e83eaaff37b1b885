"""A stand-in for sbx in the guest, its user, and the installer, all of shell: Python takes a second to start there."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

USER, HOME = "op", Path("/home/op")
STATE = HOME / "sbx"
UNIT = "sbx-daemon.service"
PROGRAM = Path("/usr/local/bin/sbx")
_STORE = HOME / ".config/com.docker.sandboxes"
_SUDO_LOG = Path("/run/sudo.log")
# Files of its folder make it break (7 at once), or be slow to answer.
_SBX = r"""#!/bin/sh
cd "$HOME/sbx" || exit 9
up() { [ -e answers ] && read -r pid <answers && kill -0 "$pid" 2>/dev/null; }
case "$*" in
    "daemon start")
        [ ! -e broken ] || exit 7
        ! up || { echo 'ERROR: the daemon runs already' >&2; exit 1; }
        id -un >>starts
        trap 'rm -f answers; exit 0' TERM
        [ ! -e slow ] || sleep 5
        echo $$ >answers
        while :; do sleep 0.2; done ;;
    "daemon status --json") up && echo '{"status":"running","socket":"/x"}' || echo '{"status":"stopped"}' ;;
    "policy ls --json")
        [ -e policy ] || { echo 'ERROR: global network policy has not been initialized' >&2; exit 1; }
        echo '{"rules":[]}' ;;
    "policy init balanced") echo balanced >>policy ;;
    "ls --json")
        # Like most of its commands it starts a daemon where none runs.
        up || { "$0" daemon start </dev/null >/dev/null 2>&1 & sleep 2; }
        echo '{"sandboxes":[]}' ;;
    *) echo "ERROR: unknown command $*" >&2; exit 1 ;;
esac
"""
# A system's Python and an environment's own; what sees to the unit is the real one.
_PYTHON = r"""#!/bin/sh
case "$*" in
    *ensurepip*) echo "$0" ;;
    *troupe_tasks.operations.daemon*)
        export PYTHONPATH=/opt/troupe:/opt/lib
        exec /usr/bin/python3 -X utf8 -m troupe_tasks.operations.daemon ;;
    *"-m venv"*) for dir; do :; done; mkdir -p "$dir/bin"; cp "$0" "$dir/bin/python" ;;
    *"-m pip"*)
        for wheel; do :; done
        version=${wheel##*/troupe-}
        printf '#!/bin/sh\necho "troupe     %s"\n' "${version%%-py3*}" >"${0%/*}/troupe"
        chmod +x "${0%/*}/troupe" ;;
esac
"""


def prepare() -> None:
    """Put the stand-ins in place, and let the user use sudo, which writes down what it was asked."""
    for path, text in ((PROGRAM, _SBX), (Path("/usr/local/bin/python3.13"), _PYTHON)):
        path.write_text(text, encoding="ascii")
        path.chmod(0o755)
    Path("/etc/sudoers.d/op").write_text(
        f"Defaults logfile={_SUDO_LOG}\n{USER} ALL=(ALL) NOPASSWD: ALL\n", encoding="ascii"
    )
    STATE.mkdir()
    shutil.chown(STATE, USER, USER)


def sign_in() -> None:
    """Write what sbx writes when it was signed in and there is no keyring."""
    account = _STORE / base64.b64encode(b"docker/auth/hub/op").decode()
    account.mkdir(parents=True)
    (account / "metadata.json").write_text('{"username": "op"}', encoding="ascii")
    (account / "secret").write_text("sealed", encoding="ascii")
    subprocess.run(["chown", "-R", f"{USER}:{USER}", HOME / ".config"], check=True)


def release(version: str) -> Path:
    """Make a release of nothing but a version."""
    folder = Path("/srv") / version
    folder.mkdir()
    files = {
        "VERSION": f"{version}\n",
        "requirements.lock": "",
        f"troupe-{version}-py3-none-any.whl": version,
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="ascii")
    sums = [f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in files.items()]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    return folder


def as_user(*words: str | Path) -> list[str | Path]:
    """Return the words that run a command as the user."""
    return [
        "runuser",
        "-u",
        USER,
        "--",
        "env",
        "-i",
        f"HOME={HOME}",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        *words,
    ]


def install(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the installer as the user."""
    argv = as_user("sh", "/opt/troupe/install.sh", "--from", folder)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    print(done.stderr)
    return done


def installed() -> str:
    """Return the version that the user's troupe tells, or nothing where there is none."""
    program = HOME / ".local/bin/troupe"
    if not program.exists():
        return ""
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()[1]


def visits_to_root() -> int:
    """Return how often sudo was used."""
    return _SUDO_LOG.read_text(encoding="utf-8").count("COMMAND=") if _SUDO_LOG.exists() else 0


def fact(name: str) -> str:
    """Return a fact of the unit's."""
    argv = ["systemctl", "show", f"--property={name}", "--value", UNIT]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def listing() -> subprocess.CompletedProcess[str]:
    """Have the user's troupe ask for all sandboxes, and print how many there are."""
    code = (
        "from troupe_tasks.paths import Paths; from troupe_tasks.sandbox.drivers import open_driver\n"
        "print(len(open_driver('sbx', Paths.from_env()).list().sandboxes))"
    )
    argv = as_user("env", "PYTHONPATH=/opt/troupe:/opt/lib", "/usr/bin/python3", "-X", "utf8", "-c", code)
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd="/", timeout=300)


def answers() -> bool:
    """Tell whether the daemon answers."""
    argv = as_user(PROGRAM, "daemon", "status", "--json")
    return "running" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
