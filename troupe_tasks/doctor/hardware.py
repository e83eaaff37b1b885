"""Check the CPU, its virtualization, and whether there is room for an agent."""

from __future__ import annotations

from typing import Final

from troupe_tasks.budget import Host, Need, check
from troupe_tasks.doctor.finding import Finding, Kind, Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.host.kvm import KvmState
from troupe_tasks.sandbox import drivers

# A coder agent at its default size.
_CODER_CPUS: Final = 8
_CODER_MEMORY_MIB: Final = 12 * 1024
_CODER_DISK_MIB: Final = 120 * 1024


def cpu(machine: Machine) -> Finding:
    """Check the CPU's architecture."""
    if machine.arch == "x86_64":
        return _finding("CPU", Level.OK, "x86_64")
    if machine.arch == "aarch64":
        return _finding("CPU", Level.NOTE, "aarch64: troupe is untested on it")
    return _finding("CPU", Level.FAIL, f"{machine.arch} is not supported", "Use an x86_64 machine.")


def virtualization(machine: Machine) -> Finding:
    """Check that KVM runs a guest; the capsule driver can do without."""
    if machine.arch != "x86_64":
        return _finding("KVM", Level.NOTE, f"the probe is for x86_64, so KVM is untested on {machine.arch}")
    found = machine.kvm()
    if found.state is KvmState.WORKS:
        return _finding("KVM", Level.OK, found.detail)
    todo = _kvm_remedy(machine, found.state)
    if machine.driver != "capsule":
        return _finding("KVM", Level.FAIL, found.detail, todo)
    weaker = "agents are isolated by gVisor or namespaces, which is weaker than a virtual machine"
    return _finding("KVM", Level.NOTE, f"{found.detail}; {weaker}", todo)


def _kvm_remedy(machine: Machine, state: KvmState) -> str:
    if state is KvmState.DENIED:
        group = machine.kvm_group()
        if group in machine.groups_listed - machine.groups_now:
            return f"You are in the group {group}, but this login began before that: log out and in again."
        if not group or group == "root":
            return (
                f"`{machine.sudo('chgrp kvm /dev/kvm')} && {machine.sudo('chmod 660 /dev/kvm')}`, then again."
            )
        if group in machine.groups_now:
            return "Its mode lets you, so something else does not: a container's device rules, most likely."
        return f"`{machine.sudo(f'usermod -aG {group} {machine.user}')}`, then log out and in again."
    if state is KvmState.BUSY:
        return "Stop the other hypervisor (VirtualBox, VMware), then run `troupe doctor` again."
    if state is KvmState.BROKEN:
        return "Ask the provider for nested virtualization, or use a machine whose hardware is its own."
    flags = machine.text("/proc/cpuinfo").split()
    for flag, module in (("vmx", "kvm_intel"), ("svm", "kvm_amd")):
        if flag in flags:
            return f"The CPU can: `{machine.sudo(f'modprobe {module}')}`."
    return "Turn virtualization on in the firmware; on a rented machine, ask for nested virtualization."


def room(machine: Machine) -> Finding:
    """Check the room for a coder agent at its default size, after the reserves."""
    free_mib = machine.free_mib(drivers.disks(machine.driver, machine.paths))
    host = Host(machine.threads, machine.memory_mib, free_mib)
    need = Need(machine.driver, _CODER_CPUS, _CODER_MEMORY_MIB, _CODER_DISK_MIB)
    verdict = check(host, need, others=())
    figures = "8 CPUs, 12 GiB memory, 120 GiB disk"
    short = [*verdict.refusals, *(line.show() for line in verdict.over), *verdict.notes]
    if not short:
        return _finding("room for a coder agent", Level.OK, f"{figures} fit after the reserves")
    todo = "" if verdict.fits else "Give agents smaller sizes: --cpu, --memory, --storage."
    return _finding("room for a coder agent", Level.NOTE, f"{figures}: {'; '.join(short)}", todo)


def _finding(requirement: str, verdict: Level, detail: str, todo: str = "") -> Finding:
    return Finding(kind=Kind.HARDWARE, requirement=requirement, verdict=verdict, detail=detail, todo=todo)
