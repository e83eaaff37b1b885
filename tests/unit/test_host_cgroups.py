"""Control groups, on trees that look like the kernel's (the real ones are the contract suite's business)."""

from __future__ import annotations

from pathlib import Path

from troupe_tasks.host import cgroups


def tree(tmp_path: Path, mounts: list[str], own: str) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    lines = [f"{n} 1 0:{n} {line}" for n, line in enumerate(mounts, 30)]
    (proc / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    (proc / "cgroup").write_text(own)
    return proc


def test_version_1_is_found_a_controller_at_a_time_below_our_own_group(tmp_path: Path) -> None:
    (tmp_path / "memory" / "box").mkdir(parents=True)
    (tmp_path / "cpu").mkdir()
    mounts = [
        f"/ {tmp_path}/memory rw,relatime - cgroup cgroup rw,memory",
        f"/ {tmp_path}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct",
    ]
    found = cgroups.hierarchies(tree(tmp_path, mounts, "4:memory:/box\n1:cpu,cpuacct:/\n0::/\n"))
    assert {(h.version, tuple(h.controllers), h.folder) for h in found} == {
        (1, ("memory",), tmp_path / "memory" / "box"),
        (1, ("cpu",), tmp_path / "cpu"),
    }
    assert cgroups.binding(found) == {"memory", "cpus"}


def test_version_2_uses_the_nearest_ancestor_that_shares_its_controllers(tmp_path: Path) -> None:
    root = tmp_path / "unified"
    leaf = root / "app.slice" / "me.scope"
    leaf.mkdir(parents=True)
    for folder, shared in ((root, "cpu memory pids"), (root / "app.slice", "cpu memory pids"), (leaf, "")):
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.controllers").write_text("" if folder == leaf else "cpu io memory pids")
        (folder / "cgroup.subtree_control").write_text(shared)
    mounts = [f"/ {root} rw,relatime - cgroup2 cgroup2 rw"]
    (found,) = cgroups.hierarchies(tree(tmp_path, mounts, "0::/app.slice/me.scope\n"))
    assert found == cgroups.Hierarchy(2, frozenset({"cpu", "memory", "pids"}), root / "app.slice")


def test_nowhere_to_make_groups_binds_nothing(tmp_path: Path) -> None:
    assert cgroups.hierarchies(tree(tmp_path, [], "0::/\n")) == ()
    assert cgroups.binding(()) == frozenset()
