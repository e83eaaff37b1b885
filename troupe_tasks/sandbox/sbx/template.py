"""A kit's image as one of sbx's own templates: loaded from a file, so that neither Docker nor a registry is needed.

sbx documents that it loads what its `template save` wrote, which is Docker's archive of an image: one layer, its
configuration, and a manifest. Whether the image has arrived is asked afterwards, not believed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from troupe_tasks import durable, locks, process
from troupe_tasks.errors import DaemonFailed, NotReady
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.sbx import answers, calls

_REPOSITORY = "troupe.local/image"
_PACK_S = 600.0
# Not the agent's, in the image: a sandbox of Docker's has no mount there that would hide what is in them.
_AGENTS = ("state", "workspace")
_HOME = "home/agent"  # Docker wants it in every image of a sandbox; the agent's own home is in /state


def tag(image: Path) -> str:
    """Return an image's name among the templates: its folder's name says what it was made from."""
    made = re.sub(r"[^a-z0-9.-]", "-", image.parent.name.lower())[:60].strip("-.")
    place = hashlib.sha256(str(image).encode()).hexdigest()[:12]
    return f"{_REPOSITORY}:{made}-{place}" if made else f"{_REPOSITORY}:{place}"


def ensure(paths: Paths, image: Path) -> str:
    """Have an image among sbx's templates and return its name there."""
    name = tag(image)
    if _known(name):
        return name
    if not (image / "usr/bin").is_dir():
        raise NotReady(f"there is no image in {image}", hint="Run the interrupted create again.")
    with locks.named(paths, "sbx-template", wait_s=_PACK_S):
        work = durable.make_private_dir(paths.run / "template")
        try:
            if not _known(name):
                calls.do(["template", "load", _packed(image, work, name)], deadline_s=calls.MAKE_S)
        finally:
            durable.remove_tree(work)
    if not _known(name):
        raise DaemonFailed(
            f"sbx loaded the image, but has no template {name}",
            cause="this sbx reads another form of archive than Docker's",
            hint="`sbx template ls` shows what it made of it; please report that with `sbx version`.",
        )  # fmt: skip
    return name


def forget(image: Path) -> None:
    """Remove an image from sbx's templates; not there is fine."""
    name = tag(image)
    if _known(name):
        calls.do(["template", "rm", "--force", name], deadline_s=60)


def _known(name: str) -> bool:
    found = calls.ask(answers.Templates, ["template", "ls", "--json"]).images
    return any(f"{one.repository}:{one.tag}" == name for one in found)


def _packed(image: Path, work: Path, name: str) -> Path:
    """Write the archive: the image's files as root's, but the agent's two folders as uid 1000's."""
    layer = work / "layer.tar"
    _tar(
        layer,
        image,
        ["--create", "--owner=0", "--group=0", *(f"--exclude=./{part}" for part in _AGENTS), "."],
    )
    _tar(
        layer,
        image,
        ["--append", "--owner=1000", "--group=1000", "--mode=0700", *(f"./{part}" for part in _AGENTS)],
    )
    durable.make_private_dir(work / _HOME)
    _tar(layer, work, ["--append", "--owner=1000", "--group=1000", f"./{_HOME}"])
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = {
        "architecture": "amd64", "os": "linux",
        "config": {"User": "agent", "WorkingDir": "/workspace", "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    durable.write(work / "config.json", json.dumps(config).encode())
    durable.write(work / "manifest.json", json.dumps(manifest).encode())
    archive = work / "image.tar"
    _tar(archive, work, ["--create", "manifest.json", "config.json", "layer.tar"])
    return archive


def _tar(file: Path, folder: Path, words: Sequence[str]) -> None:
    process.run(
        [
            "tar",
            "--file",
            file,
            "--directory",
            folder,
            "--numeric-owner",
            "--sort=name",
            "--one-file-system",
            *words,
        ],
        deadline_s=_PACK_S,
    )
