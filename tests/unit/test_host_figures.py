"""CPU, memory and disk figures on machines of every cgroup layout."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.host.cpu import usable_threads
from troupe_tasks.host.disks import device, free_mib
from troupe_tasks.host.memory import total_mib
from troupe_tasks.host.quota import groups

V2 = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
UNLIMITED = "9223372036854771712"


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, files: Mapping[str, str], *, group: str = "/user/a") -> Path:
    (root / "sys/fs/cgroup" / group.lstrip("/")).mkdir(parents=True)
    return machine(
        root,
        {
            "proc/self/cgroup": f"0::{group}\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
            **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
        },
    )


def v1(root: Path, files: Mapping[str, str]) -> Path:
    for controller in ("cpu,cpuacct", "memory"):
        (root / "sys/fs/cgroup" / controller / "box").mkdir(parents=True)
    return machine(
        root,
        {
            "proc/self/cgroup": "4:memory:/box\n1:cpu,cpuacct:/box\n0::/\n",
            "proc/self/mountinfo": V1,
            **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
        },
    )


def test_threads_are_the_affinity_where_no_group_limits(tmp_path: Path) -> None:
    assert usable_threads(root=machine(tmp_path, {}), affinity=8) == 8


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"user/a/cpu.max": "200000 100000\n"}, 2),
        ({"user/cpu.max": "350000 100000\n", "user/a/cpu.max": "max 100000\n"}, 3),
        ({"user/a/cpu.max": "50000 100000\n"}, 1),
        ({"user/a/cpu.max": "max 100000\n"}, 8),
        ({"user/a/cpu.max": "1600000 100000\n"}, 8),
        ({"user/a/cpu.max": "rubbish\n"}, 8),
        ({"user/a/cpu.max": "100000 0\n"}, 8),
    ],
)
def test_threads_under_a_version_2_quota(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    assert usable_threads(root=v2(tmp_path, files), affinity=8) == threads


@pytest.mark.parametrize(("quota", "threads"), [("300000", 3), ("-1", 8), ("", 8)])
def test_threads_under_a_version_1_quota(tmp_path: Path, quota: str, threads: int) -> None:
    folder = "cpu,cpuacct/box"
    root = v1(tmp_path, {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000\n"})
    assert usable_threads(root=root, affinity=8) == threads


def test_memory_is_the_machines_where_no_group_limits(tmp_path: Path) -> None:
    assert total_mib(root=machine(tmp_path, {})) == 16000


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        ({"user/a/memory.max": "1073741824\n"}, 1024),
        ({"user/memory.max": "2147483648\n", "user/a/memory.max": "max\n"}, 2048),
        ({"user/a/memory.max": "max\n"}, 16000),
        ({"user/a/memory.max": f"{1 << 40}\n"}, 16000),
    ],
)
def test_memory_under_a_version_2_limit(tmp_path: Path, files: dict[str, str], mib: int) -> None:
    assert total_mib(root=v2(tmp_path, files)) == mib


@pytest.mark.parametrize(("limit", "mib"), [("536870912", 512), (UNLIMITED, 16000)])
def test_memory_under_a_version_1_limit(tmp_path: Path, limit: str, mib: int) -> None:
    assert total_mib(root=v1(tmp_path, {"memory/box/memory.limit_in_bytes": limit})) == mib


def test_memory_of_a_group_stands_in_for_an_unreadable_machine(tmp_path: Path) -> None:
    root = v1(tmp_path, {"memory/box/memory.limit_in_bytes": "536870912", "proc/meminfo": ""})
    (root / "proc/meminfo").write_text("MemTotal: lots\n")
    assert total_mib(root=root) == 512
    (root / "sys/fs/cgroup/memory/box/memory.limit_in_bytes").write_text(UNLIMITED)
    assert total_mib(root=root) is None


def test_a_container_sees_its_group_at_the_top_of_the_mount(tmp_path: Path) -> None:
    root = v2(tmp_path, {"memory.max": "1073741824\n"}, group="/")
    (root / "proc/self/mountinfo").write_text(V2.replace("0:26 / /", "0:26 /docker/abc /"))
    (root / "proc/self/cgroup").write_text("0::/docker/abc\n")
    assert total_mib(root=root) == 1024


@pytest.mark.parametrize("path", ["/../other", "/gone", "/../../../../etc"])
def test_a_group_path_outside_the_mount_is_not_followed(tmp_path: Path, path: str) -> None:
    root = v2(tmp_path, {})
    (root / "proc/self/cgroup").write_text(f"0::{path}\n")
    assert [group.folder for group in groups("memory", root=root)] == [root / "sys/fs/cgroup"]


def test_a_hybrid_machine_uses_the_version_that_has_the_controller(tmp_path: Path) -> None:
    root = v1(tmp_path, {"memory/box/memory.limit_in_bytes": "536870912", "unified/cgroup.controllers": ""})
    unified = V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    (root / "proc/self/mountinfo").write_text(unified + V1)
    assert {group.version for group in groups("memory", root=root)} == {1}
    assert total_mib(root=root) == 512


@given(st.text(), st.text())
def test_no_text_of_the_kernels_is_too_odd(
    tmp_path_factory: pytest.TempPathFactory, cgroup: str, mountinfo: str
) -> None:
    root = tmp_path_factory.mktemp("odd")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_bytes(cgroup.encode("utf-8", "surrogatepass"))
    (root / "proc/self/mountinfo").write_bytes(mountinfo.encode("utf-8", "surrogatepass"))
    assert usable_threads(root=root, affinity=3) == 3
    assert total_mib(root=root) is None


def test_free_space_of_a_folder_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    here, there = free_mib(tmp_path), free_mib(tmp_path / "a/b/c")
    assert here is not None
    assert there is not None
    assert abs(here - there) < 1024


def test_free_space_that_can_t_be_read_is_none(tmp_path: Path) -> None:
    def refuses(_: Path) -> os.statvfs_result:
        raise PermissionError

    assert free_mib(tmp_path, statvfs=refuses) is None


@pytest.mark.skipif(not (shutil.which("nproc") and shutil.which("free")), reason="needs nproc and free")
def test_figures_agree_with_nproc_free_and_df(tmp_path: Path) -> None:
    def figure(*argv: str) -> list[str]:
        return subprocess.run(
            argv, check=True, capture_output=True, text=True, encoding="utf-8"
        ).stdout.split()

    threads, memory, disk = usable_threads(), total_mib(), free_mib(tmp_path)
    assert threads is not None
    assert memory is not None
    assert disk is not None
    assert threads <= int(figure("nproc")[0])
    assert memory <= int(figure("free", "-m")[7])
    assert abs(disk - int(figure("df", "-m", "--output=avail", str(tmp_path))[-1])) < 1024


def test_a_path_that_is_not_there_yet_is_on_the_filesystem_that_will_hold_it(tmp_path: Path) -> None:
    assert device(tmp_path / "no" / "such") == tmp_path.stat().st_dev
    assert device(Path("/proc/self/fd")) != device(tmp_path)
    (tmp_path / "file").touch()
    assert device(tmp_path / "file" / "below") is None
