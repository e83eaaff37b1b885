"""A Debian 13 machine with systemd and cgroup v2, built once and booted under QEMU.

Its base disk is made by mmdebstrap and cached by the digest of its recipe; every run boots a copy. The code under
test travels on a second disk, a plain tar, and the results come back on a second serial port (a getty resets the
first). KVM is used only where it really runs guests.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable, process
from troupe_tasks.host import apt, kvm

ROOT = Path(__file__).resolve().parents[2]
SUITE, PYTHON = "trixie", "3.13"
# libpam-systemd and dbus-user-session give the ordinary user `op` a service manager of its own.
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "dbus-user-session", "libpam-systemd", "linux-image-cloud-amd64",
    "python3", "sudo",
)  # fmt: skip
WHEELS = ("h11", "pydantic", "pyseccomp", "pytest", "rich", "sh", "supervisor", "tomlkit")
USER, UID = "op", 1001
_BOOT_DEADLINE_S = 2700
_MARK = b"-----REPORT "
_UNIT = """\
[Unit]
Description=Run troupe's tests and power off
After=multi-user.target user@1001.service
Wants=user@1001.service

[Service]
Type=oneshot
ExecStartPre=/bin/mkdir -p /opt/troupe
ExecStartPre=/bin/tar -xf /dev/vdb -C /opt/troupe
ExecStart=/bin/sh /opt/troupe/run.sh
ExecStopPost=/bin/systemctl --no-block poweroff
TimeoutStartSec=2400
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS1
Environment=PYTHONPATH=/opt/troupe:/opt/lib PYTHONDONTWRITEBYTECODE=1 HOME=/root LANG=C.UTF-8

[Install]
WantedBy=multi-user.target
"""
_RUN = """\
cd /opt/troupe
# Services get a search path of their own, which knows nothing of the wheels.
mkdir -p /usr/local/lib/python{python}/dist-packages
echo /opt/lib >/usr/local/lib/python{python}/dist-packages/wheels.pth
# Nothing else writes it here, and under emulation each program of troupe's took five seconds longer to start.
python3 -m compileall -q -j 2 troupe_tasks
systemctl --version | head -n 1; uname -r
for name in {names}; do
  python3 -m pytest -q --color=no -p no:cacheprovider -o junit_logging=all --rootdir=/opt/troupe -c /dev/null \
    --junitxml=/run/$name.xml {inside}/inside/$name.py || true
  echo "-----REPORT $name"; base64 /run/$name.xml; echo "-----END"
done
sync
"""


def missing() -> str:
    """Return why there can be no guest on this machine; empty when there can."""
    if os.geteuid() != 0:
        return "making a guest's disk with its owners needs root"
    packages = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs"}
    lacking = [package for program, package in packages.items() if shutil.which(program) is None]
    return f"a guest needs the Debian packages {' '.join(lacking)}" if lacking else ""


@dataclass(frozen=True)
class Base:
    """The files that every guest starts from."""

    disk: Path
    kernel: Path
    initrd: Path


def ensure_base(home: Path, *, packages: tuple[str, ...] = ()) -> Base:
    """Return the base disk with its kernel, built if it is not there yet (about two minutes, 600 MB)."""
    packages = PACKAGES + packages
    recipe = "\n".join([SUITE, PYTHON, *packages, *WHEELS, _UNIT, "2"])
    folder = home / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        work = home / ".building"
        durable.remove_tree(work)
        work.mkdir(parents=True)
        _build(work, packages)
        work.rename(folder)
    return Base(folder / "base.ext4", folder / "vmlinuz", folder / "initrd")


def _build(work: Path, packages: tuple[str, ...]) -> None:
    root = work / "rootfs"
    apt.keyring()
    process.run(
        [
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}",
            "--aptopt=APT::Install-Recommends false", "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            SUITE, root, *apt.mirrors().lines(SUITE),
        ],
        env={**apt.network_env(), "TMPDIR": str(work)}, deadline_s=900,
    )  # fmt: skip
    process.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
            "--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON,
            "--target", root / "opt/lib", *WHEELS,
        ],
        env=apt.network_env(), deadline_s=600,
    )  # fmt: skip
    _furnish(root)
    process.run(
        ["chroot", root, "/usr/bin/python3", "-m", "compileall", "-q", "/opt/lib"], deadline_s=300, ok=(0, 1)
    )
    for name in ("vmlinuz", "initrd"):
        newest = max((root / "boot").glob(f"{name}*"))
        shutil.copyfile(newest, work / name)
    process.run(["mkfs.ext4", "-q", "-F", "-d", root, work / "base.ext4", "2G"], deadline_s=300)
    durable.remove_tree(root)


def _furnish(root: Path) -> None:
    (root / "etc/hostname").write_text("guest\n", encoding="ascii")
    (root / "etc/fstab").write_text("/dev/vda / ext4 defaults 0 1\n", encoding="ascii")
    # Fixed, so that a second boot is not a first one.
    machine_id = hashlib.md5(b"guest", usedforsecurity=False).hexdigest()
    (root / "etc/machine-id").write_text(f"{machine_id}\n", encoding="ascii")
    (root / "etc/systemd/system/troupe-tests.service").write_text(_UNIT, encoding="ascii")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "troupe-tests.service").symlink_to("../troupe-tests.service")
    process.run(
        ["chroot", root, "/usr/sbin/useradd", "-m", "-u", str(UID), "-s", "/bin/bash", USER], deadline_s=30
    )
    linger = root / "var/lib/systemd/linger"
    linger.mkdir(parents=True, exist_ok=True)
    (linger / USER).touch()


def code_disk(target: Path, names: tuple[str, ...], *, inside: str = "tests/guest") -> None:
    """Write the code under test, and what to run of it, as a tar that the guest reads from its second disk."""
    with tarfile.open(target, "w") as archive:
        for folder in ("troupe_tasks", "units", inside):
            archive.add(ROOT / folder, folder, filter=_plain)
        archive.add(ROOT / "install.sh", "install.sh", filter=_plain)
        script = _RUN.format(names=" ".join(names), python=PYTHON, inside=inside).encode()
        entry = tarfile.TarInfo("run.sh")
        entry.size = len(script)
        archive.addfile(entry, io.BytesIO(script))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    return None if "__pycache__" in entry.name else entry


@dataclass(frozen=True)
class Boot:
    """What one boot brought: a JUnit report a file, everything the tests printed, and how long it took."""

    reports: dict[str, bytes]
    said: str
    took_s: float


def accelerator() -> tuple[str, ...]:
    """Return QEMU's options for this machine: KVM only where it really runs guests."""
    if kvm.check().state is kvm.KvmState.WORKS:
        return ("-accel", "kvm", "-cpu", "host")
    return ("-accel", "tcg,thread=multi", "-cpu", "max")


def boot(
    base: Base, disk: Path, *, code: Path, logs: Path, memory_mib: int = 1024, extra: tuple[str, ...] = ()
) -> Boot:
    """Boot a disk until it powers itself off; extra are more of QEMU's options. Raises ToolTimeout."""
    began = time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    process.run(
        [
            "qemu-system-x86_64", "-M", "q35", *accelerator(), "-smp", "2", "-m", str(memory_mib), "-display", "none",
            "-monitor", "none", "-no-reboot", "-nic", "none",
            "-serial", f"file:{logs / 'console.log'}", "-serial", f"file:{logs / 'tests.log'}",
            "-kernel", base.kernel, "-initrd", base.initrd,
            "-append", "root=/dev/vda rw console=ttyS0 systemd.show_status=0 quiet",
            "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe",
            "-drive", f"file={code},if=virtio,format=raw,readonly=on", *extra,
        ],
        deadline_s=_BOOT_DEADLINE_S,
    )  # fmt: skip
    return Boot(*parse((logs / "tests.log").read_bytes()), time.monotonic() - began)


def parse(printed: bytes) -> tuple[dict[str, bytes], str]:
    """Split what came over the serial port into the reports and the rest."""
    reports: dict[str, bytes] = {}
    said: list[bytes] = []
    name = ""
    for row in printed.replace(b"\r", b"").split(b"\n"):
        if row.startswith(_MARK):
            name = row.removeprefix(_MARK).decode()
            reports[name] = b""
        elif row == b"-----END":
            reports[name] = base64.b64decode(reports[name])
            name = ""
        elif name:
            reports[name] += row
        else:
            said.append(row)
    return reports, b"\n".join(said).decode(errors="replace")
