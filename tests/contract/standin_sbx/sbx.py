"""A stand-in for Docker's `sbx`: its documented command line, strictly, over capsules; `misbehave.json` makes it ill.

Run as `sbx.py FOLDER WORDS...`; the folder holds all it knows. Only what makes or ends a sandbox loads troupe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2])]

from tests.contract.standin_sbx import schema, words  # noqa: E402

_OPEN = {"version", "daemon status", "daemon restart", "policy init"}  # need no sign-in
_PASSIVE = {"version", "daemon status"}  # and help
_BANNER = "Starting sandboxd daemon...\nDaemon started (PID 4242)\nLogs: /dev/null\n"
_FOREVER = 86_400


def fail(text: str, status: int = 1) -> NoReturn:
    print(f"ERROR: {text}", file=sys.stderr)
    sys.exit(status)


class Place:
    """The stand-in's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "house"
        (folder / "sandboxes").mkdir(parents=True, exist_ok=True)
        self.ill: dict[str, Any] = self.get("misbehave", {})
        self.banner = ""

    def get(self, name: str, default: Any) -> Any:
        try:
            return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return default

    def put(self, name: str, value: Any) -> None:
        fresh = self.folder / f"{name}.json.{os.getpid()}"
        fresh.write_text(json.dumps(value), encoding="utf-8")
        fresh.replace(self.folder / f"{name}.json")

    def sandboxes(self) -> list[dict[str, Any]]:
        names = sorted(path.stem for path in (self.folder / "sandboxes").glob("*.json"))
        return [found for name in names if (found := self.get(f"sandboxes/{name}", None)) is not None]

    def find(self, name: str) -> dict[str, Any]:
        found = None if self.ill.get("forget") else self.get(f"sandboxes/{name}", None)
        if found is None:
            fail(f"no sandbox named '{name}'")
        return dict(found)

    def keep(self, one: dict[str, Any]) -> None:
        self.put(f"sandboxes/{one['name']}", one)

    def running(self) -> set[str]:
        """Return the capsules that run."""
        flags = self.get("runtime", None)
        if flags is None:
            return set()
        said = subprocess.run([*flags, "list", "-format", "json"], capture_output=True, check=True).stdout
        return {one["id"][:-1] for one in json.loads(said or b"null") or [] if one["status"] == "running"}

    def status(self, one: dict[str, Any], running: set[str]) -> str:
        return str(one.get("stuck") or ("running" if one["below"] in running else "stopped"))

    def below(self) -> Any:
        self.load()
        from tests.contract.standin_sbx.below import Below

        return Below(self.home)

    def load(self) -> None:
        """Let troupe and what it needs be imported, which a plain call is spared."""
        sys.path += [place for place in self.get("imports", []) if place not in sys.path]

    def start(self, one: dict[str, Any]) -> None:
        """Start a sandbox; two execs may want that at once."""
        with (self.folder / "start.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if one["below"] not in self.running():
                self.below().start(one["below"])

    def hold(self, name: str) -> None:
        """Have the program that this one becomes count as a session of the sandbox."""
        handle = os.open(self.folder / "sandboxes" / f"{name}.sessions", os.O_RDONLY | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.set_inheritable(handle, True)

    def idle(self) -> None:
        """Stop every sandbox without a session, as Docker does half a minute after the last one."""
        for one in self.sandboxes():
            place = self.folder / "sandboxes" / f"{one['name']}.sessions"
            with place.open("a") as sessions, contextlib.suppress(BlockingIOError):
                fcntl.flock(sessions, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _halt(self, one)

    def have_daemon(self, command: str) -> None:
        """Start a daemon that is stopped, as nearly every command does, and leave a mark of it."""
        if self.ill.get("daemon") == "stopped" and command not in _PASSIVE:
            with (self.folder / "daemon-starts").open("a", encoding="utf-8") as marks:
                marks.write(f"{command}\n")
            self.ill = {key: value for key, value in self.ill.items() if key != "daemon"}
            self.put("misbehave", self.ill)
            self.banner = _BANNER

    def show(self, value: Any) -> None:
        sys.stdout.write(self.banner)
        print(self.ill.get("garbage") or json.dumps(value))


def ls(place: Place, asked: words.Asked) -> None:
    running = place.running()
    rows = [
        {
            "name": one["name"], "agent": "shell", "status": place.status(one, running), "workspaces": [], "ports": [],
            "created_at": one["created_at"], **({} if place.ill.get("no_ids") else {"id": one["id"]}),
        }
        for one in ([] if place.ill.get("forget") else place.sandboxes())
    ]  # fmt: skip
    place.show({"sandboxes": rows})


def inspect(place: Place, asked: words.Asked) -> None:
    one = place.find(asked.words[0])
    place.show({
        "name": one["name"], "agent": "shell", "kits": ["troupe-agent"], "state": place.status(one, place.running()),
        "workspace": "/workspace", "ports": [], "mcp_gateway": False, "sessions": 0, **place.ill.get("inspect", {}),
    })  # fmt: skip


def version(place: Place, asked: words.Asked) -> None:
    place.show(
        place.ill.get("version")
        or {"client": {"version": "v0.48.0"}, "server": {"state": "running", "version": "v0.48.0"}}
    )


def daemon_status(place: Place, asked: words.Asked) -> None:
    print(json.dumps({"status": place.ill.get("daemon", "running"), "socket": "/dev/null"}))


def daemon_restart(place: Place, asked: words.Asked) -> None:
    """Stop every sandbox; what was forgotten is remembered, what hung hangs no more."""
    for one in place.sandboxes():
        _halt(place, one)
    place.put("misbehave", {key: value for key, value in place.ill.items() if key not in {"forget", "hang"}})


def stop(place: Place, asked: words.Asked) -> None:
    for name in asked.words:
        _halt(place, place.find(name))


def _halt(place: Place, one: dict[str, Any]) -> None:
    if one["below"] in place.running():  # what is left of its control groups goes at the next start or at rm
        flags = place.get("runtime", [])
        subprocess.run([*flags, "kill", f"{one['below']}.", "KILL"], check=False)
        subprocess.run([*flags, "delete", "-force", f"{one['below']}."], check=True)
    if place.ill.get("clock_off_s"):
        place.put(
            "misbehave",
            {**place.ill, "clock_off_s": 0} if not place.ill.get("clock_stays_off") else place.ill,
        )


def rm(place: Place, asked: words.Asked) -> None:
    if not {"-f", "--force"} & set(asked.flags):
        fail("stdin is not a terminal; use --force to skip confirmation")
    for name in asked.words:
        one = place.find(name)
        if place.ill.get("half_removed"):
            place.keep({**one, "stuck": "removing"})
            continue
        place.below().remove(one["below"])
        for kind in ("json", "sessions"):
            (place.folder / "sandboxes" / f"{name}.{kind}").unlink(missing_ok=True)
        held = place.get("policy", {})
        rules = [rule for rule in held.get("rules", []) if rule["sandbox"] != name]
        place.put("policy", {**held, "rules": rules})


def run(place: Place, asked: words.Asked) -> None:
    """Become the runtime's exec in the capsule, which is started when it is not."""
    one = place.find(asked.words[0])
    if one["below"] not in place.running():
        if place.ill.get("broken_start"):
            fail("500 Internal Server Error: failed to start runtime")
        place.start(one)
    user = {"root": 0, "0": 0, "agent": 1000, "1000": 1000}.get(asked.flags.get("-u", "agent"))
    if user is None:
        fail(f"unable to find user {asked.flags['-u']}")
    argv = asked.words[1:]
    if off_s := place.ill.get(
        "clock_off_s"
    ):  # the clock is the host's here, so what asks it is told another time
        argv = [word.replace("time.time()", f"(time.time() - {off_s})") for word in argv]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/agent", "SANDBOX_NAME": one["name"]}
    flags = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    command = [
        *place.get("runtime", []),
        "exec",
        "--user",
        f"{user}:{user}",
        "--cwd",
        asked.flags.get("-w", "/workspace"),
    ]
    if user == 0:  # as Docker's root has them, among others
        flags += [word for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER") for word in ("--cap", f"CAP_{name}")]
    place.hold(one["name"])
    if "-i" not in asked.flags:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.execv(command[0], [*command, *flags, f"{one['below']}.", *argv])


def env_create(place: Place, asked: words.Asked) -> None:
    if "--help" in asked.flags:
        print(
            "Usage: sbx env create [PATH...]\n  -f, --force  Approve\n      --skip-host-commands  Run none of the host"
        )
        return
    if not {"-f", "--force"} & set(asked.flags):
        fail("approve this invocation with --force")
    path = Path(asked.words[0])
    try:
        wanted = schema.environment(path / "sbxenv.yaml" if path.is_dir() else path)
        _make(place, wanted)
    except schema.BadFile as error:
        fail(str(error))


def _make(place: Place, wanted: dict[str, Any]) -> None:
    name, options = wanted["name"], wanted["sandboxOptions"]
    if not place.get("policy", {}).get("default"):
        fail(
            "global network policy has not been initialized\n"
            "Initialize it with: sbx policy init <allow-all|balanced|deny-all>"
        )
    if place.get(f"sandboxes/{name}", None) is not None:
        fail(f'409 Conflict: sandbox "{name}" already exists')
    if place.ill.get("network_left"):
        fail(f"failed to create network: network with name {name} already exists")
    image = place.get("templates", {}).get(options["template"])
    if image is None or options["pullPolicy"] != "never":
        fail(f"image {options['template']} not found")
    place.load()
    from tests.contract.standin_sbx.below import below_id, runtime
    from troupe_tasks.sandbox.protocol import Sizes

    memory = schema.mib(options["memory"])
    if memory < 512:
        fail("memory must be at least 512m")
    if memory > (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20) * 3 // 4:
        fail("memory must be at most 75% of the host's")
    root, docker = (os.environ.get(f"DOCKER_SANDBOXES_{part}_SIZE", "20g") for part in ("ROOT", "DOCKER"))
    if schema.mib(docker) < 512:
        fail("Docker disk must be at least 512m")
    sizes = Sizes(
        cpus=options["cpus"], memory_mib=memory, storage_mib=schema.mib(root), processes=4096, open_files=4096
    )
    place.put("runtime", runtime(place.home))
    one = {
        "name": name,
        "id": str(uuid.uuid4()),
        "below": below_id(name),
        "created_at": time.strftime("%FT%TZ", time.gmtime()),
    }
    if place.ill.get("die_half_made"):
        place.keep(one)
        os.kill(os.getpid(), signal.SIGKILL)
    place.below().make(name, Path(image), sizes)
    for kit in wanted["kits"]:
        for step in kit.get("setup", {}).get("install", []):
            user = step.get("user", "0")
            exec_argv = [
                *place.get("runtime", []),
                "exec",
                "--user",
                f"{user}:{user}",
                f"{one['below']}.",
                "/bin/sh",
                "-c",
                step["command"],
            ]
            subprocess.run(exec_argv, check=True, stdin=subprocess.DEVNULL)
    place.keep(one)


# Some of the some two hundred rules of each.
PRESETS: dict[str, list[dict[str, Any]]] = {
    "deny-all": [],
    "allow-all": [{"decision": "allow", "sandbox": None, "resources": ["**"]}],
    "balanced": [
        {"decision": "allow", "sandbox": None, "resources": ["github.com:443", "*.npmjs.org"]},
        {"decision": "allow", "sandbox": None, "resources": ["**.docker.io"]},
    ],
}


def _covers(text: str, host: str) -> bool:
    """Tell whether a rule's pattern is of a host: **, *.d for one label before d, **.d for any, or the host."""
    text = text.partition(":")[0]
    if text.startswith("**."):
        return host.endswith(text[2:])
    if text.startswith("*."):
        return host.partition(".")[2] == text[2:]
    return text in {"**", host}


def policy(place: Place, asked: words.Asked) -> None:
    held = place.get("policy", {})
    if asked.command == "policy init":
        if held.get("default"):
            fail("policy is already initialized")
        if asked.words[0] not in {"allow-all", "balanced", "deny-all"}:
            fail(f"unknown policy {asked.words[0]}")
        place.put("policy", {**held, "default": asked.words[0]})
        return
    if not held.get("default"):
        fail("412 Precondition Failed: global network policy has not been initialized")
    rules = held.get("rules", [])
    if asked.command == "policy ls":
        shown = [*PRESETS[held["default"]], *rules]
        place.show({"rules": [{"id": str(at), "status": "active", **rule} for at, rule in enumerate(shown)]})
    elif asked.command == "policy check network":
        host, name = asked.words[0], asked.flags.get("--sandbox")
        ours = [rule for rule in rules if rule["sandbox"] in {None, name}]
        if place.ill.get("policy_unheeded"):  # as under an organization's
            ours = []
        decided = {
            rule["decision"]
            for rule in [*PRESETS[held["default"]], *ours]
            if any(_covers(text, host) for text in rule["resources"])
        }
        allowed = decided == {"allow"} or bool(place.ill.get("policy_open"))  # a denial always wins
        place.show({
            "allowed": allowed, "target": host, "governance": {"active": bool(place.ill.get("governed"))},
        })  # fmt: skip
        sys.exit(0 if allowed else 1)
    else:
        rule = {
            "decision": asked.command.split()[1],
            "sandbox": asked.flags.get("--sandbox"),
            "resources": asked.words[0].split(","),
        }
        if asked.words[0] == "*":
            fail("bare * is not allowed")
        place.put("policy", {**held, "rules": [*rules, rule]})


def template(place: Place, asked: words.Asked) -> None:
    known = place.get("templates", {})
    if asked.command == "template ls":
        rows = [tag.rpartition(":") for tag in known]
        place.show(
            {"images": [{"id": tag, "repository": name, "tag": tag, "size": 1} for name, _, tag in rows]}
        )
        return
    if asked.command == "template rm":
        if not {"-f", "--force"} & set(asked.flags):
            fail("stdin is not a terminal; use --force to skip confirmation")
        if unknown := set(asked.words) - set(known):
            fail(f"no template {sorted(unknown)}")
        place.put("templates", {tag: root for tag, root in known.items() if tag not in asked.words})
        for tag in asked.words:
            if Path(known[tag]).is_relative_to(place.folder):  # else it is a test's own, and stays
                shutil.rmtree(known[tag])
        return
    with tarfile.open(asked.words[0]) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        root = place.folder / "templates" / uuid.uuid4().hex / "rootfs"
        root.mkdir(parents=True)
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                files.extractall(root, filter="fully_trusted", numeric_owner=True)  # noqa: S202 - the test's own
        home = root / "home/agent"
        if not home.is_dir() or home.stat().st_uid != 1000:
            fail("the image has no /home/agent of the user agent")
        if not json.load(archive.extractfile(manifest["Config"]))["config"].get("Cmd"):  # type: ignore[arg-type]
            fail("the image has nothing to run")
    place.put("templates", {**known, **dict.fromkeys(manifest["RepoTags"], str(root))})


def settings(place: Place, asked: words.Asked) -> None:
    held = place.get("settings", {"kit.allowedSources": ["docker.io/"]})
    key = asked.words[0]
    if key not in held:
        fail(f"unknown setting {key}")
    if asked.command == "settings set":
        held[key] = json.loads(asked.words[1])
        if not place.ill.get("settings_stay"):
            place.put("settings", held)
    else:
        value = json.dumps(held[key]) if place.ill.get("settings_as_text") else held[key]
        place.show({"key": key, "value": place.ill.get("settings_odd", value), "source": "override"})


def secret(place: Place, asked: words.Asked) -> None:
    held = place.get("secrets", [])
    if asked.command == "secret ls":
        place.show({"secrets": held, "custom_secrets": []})
        return
    if "--registry" not in asked.flags or "--password-stdin" not in asked.flags:
        fail("only registry credentials on stdin are known here")
    scope = "global" if "--all-sandboxes" in asked.flags else asked.flags.get("--sandbox", "host-only")
    entry = {"scope": scope, "type": "registry", "name": asked.flags["--registry"], "secret": "****"}
    if any((one["scope"], one["name"]) == (scope, entry["name"]) for one in held) and "-f" not in asked.flags:
        print("cancelled")  # and status 0, as the real one
        return
    given = sys.stdin.buffer.read()
    if not given:
        fail("no password on stdin")
    if place.ill.get("secrets_stay"):
        return
    (place.folder / f"password-{scope}").write_bytes(given)
    kept = [one for one in held if (one["scope"], one["name"]) != (scope, entry["name"])]
    place.put("secrets", [*kept, entry])


HANDLERS = {
    "version": version, "ls": ls, "inspect": inspect, "stop": stop, "rm": rm, "exec": run, "env create": env_create,
    "daemon status": daemon_status, "daemon restart": daemon_restart,
    **{name: policy for name in words.COMMANDS if name.startswith("policy")},
    **{name: template for name in words.COMMANDS if name.startswith("template")},
    **{name: settings for name in words.COMMANDS if name.startswith("settings")},
    **{name: secret for name in words.COMMANDS if name.startswith("secret")},
}  # fmt: skip


def main() -> None:
    place = Place(Path(sys.argv[1]))
    with (place.folder / "calls.log").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"argv": sys.argv[2:], "env": sorted(os.environ)}) + "\n")
    try:
        asked = words.parse(sys.argv[2:])
    except words.Wrong as error:
        fail(str(error))
    if "--help" not in asked.flags:
        place.have_daemon(asked.command)
    if asked.command in place.ill.get("hang", []):
        time.sleep(_FOREVER)
    if place.ill.get("signed_out") and asked.command not in _OPEN and "--help" not in asked.flags:
        fail("Not authenticated to Docker\nSign in with: sbx login")
    if said := place.ill.get("says", {}).get(asked.command):
        fail(said)
    HANDLERS[asked.command](place, asked)


def install(folder: Path, runsc: Path, *, programs: str = "bin") -> Path:
    """Make a folder with the program `sbx` in it and the stand-in's own folder; return the latter."""
    own = folder / "sbx-state"
    tools = own / "house/.local/share/troupe/tools"
    tools.mkdir(parents=True, mode=0o700)
    (tools / "runsc").symlink_to(runsc)
    program = folder / programs / "sbx"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -I -S -X pycache_prefix={own}/pyc {HERE / "sbx.py"} {own} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    (own / "imports.json").write_text(json.dumps([place for place in sys.path if place]), encoding="utf-8")
    return own


if __name__ == "__main__":
    main()
