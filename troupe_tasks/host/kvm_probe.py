"""Run a tiny 64-bit guest on /dev/kvm and print how far it came, as one JSON object.

Run it as a child with a deadline, `python -I kvm_probe.py [DEVICE]`; it imports nothing of troupe's. On a
host whose KVM can't really run guests it may never come back; should its parent be killed meanwhile, its own
alarm ends it. Opening the device, making a machine and running a few real-mode instructions succeed there too;
64-bit code, a long loop and SSE do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import struct
import sys
from typing import Final

DEVICE: Final = "/dev/kvm"
PASSED: Final = "LFS"
_LIFE_S: Final = 5  # longer than any parent waits

# NASM `bits 64`, `org 0x8000`. L: long mode reached. F: a loop ended that emulators are slow at. S: SSE adds.
# Control: these bytes, tables and control registers say LFS under QEMU's software emulation (-cpu qemu64).
CODE: Final = bytes.fromhex(
    "66baf803"  #         mov   dx, 0x3f8
    "b04c"  #             mov   al, 'L'
    "ee"  #               out   dx, al
    "b980f0fa02"  #       mov   ecx, 50000000
    "ffc9"  #      .loop: dec   ecx
    "75fc"  #             jnz   .loop
    "b046"  #             mov   al, 'F'
    "ee"  #               out   dx, al
    "b82a000000"  #       mov   eax, 42
    "660f6ec0"  #         movd  xmm0, eax
    "660fd4c0"  #         paddq xmm0, xmm0
    "660f7ec0"  #         movd  eax, xmm0
    "83f854"  #           cmp   eax, 84
    "7503"  #             jne   .end
    "b053"  #             mov   al, 'S'
    "ee"  #               out   dx, al
    "f4"  #        .end:  hlt
)

_GDT, _PML4, _PDPT, _PD, _START, _MEMORY_BYTES = 0x1000, 0x3000, 0x4000, 0x5000, 0x8000, 2 << 20

# The numbers of <linux/kvm.h> for x86_64.
_API_VERSION, _CREATE_VM, _CREATE_VCPU, _MMAP_SIZE, _RUN = 0xAE00, 0xAE01, 0xAE41, 0xAE04, 0xAE80
_SET_TSS_ADDR, _SET_MEMORY, _GET_CPUID, _SET_CPUID = 0xAE47, 0x4020AE46, 0xC008AE05, 0x4008AE90
_GET_SREGS, _SET_SREGS, _SET_REGS = 0x8138AE83, 0x4138AE84, 0x4090AE82
_EXIT_IO, _EXIT_HLT = 2, 5
_SREGS_BYTES, _REGS_BYTES, _CPUID_ENTRIES = 312, 144, 256


def _memory() -> mmap.mmap:
    """Return the guest's memory: one identity-mapped 2 MiB page, flat 64-bit segments, the code."""
    memory = mmap.mmap(-1, _MEMORY_BYTES)
    for offset, entry in (
        (_PML4, _PDPT | 3),
        (_PDPT, _PD | 3),
        (_PD, 0x83),  # present, writable, a 2 MiB page
        (_GDT + 8, 0x00AF9B000000FFFF),
        (_GDT + 16, 0x00CF93000000FFFF),
    ):
        struct.pack_into("<Q", memory, offset, entry)
    memory[_START : _START + len(CODE)] = CODE
    return memory


def _segment(selector: int, kind: int, *, code: bool) -> bytes:
    """Return a struct kvm_segment: flat, present, ring 0."""
    return struct.pack(
        "<QIH10B", 0, 0xFFFFFFFF, selector, kind, 1, 0, 0 if code else 1, 1, int(code), 1, 0, 0, 0
    )


def _long_mode(sregs: bytearray) -> None:
    """Turn the registers of a reset CPU into those of 64-bit code with paging and SSE on."""
    data = _segment(16, 3, code=False)
    sregs[0:24] = _segment(8, 11, code=True)
    for place in range(1, 6):  # ds es fs gs ss; the task register and the LDT stay as reset left them
        sregs[place * 24 : place * 24 + 24] = data
    struct.pack_into("<QH", sregs, 192, _GDT, 23)
    cr0, cr3, cr4, efer = 0x80010033, _PML4, 0x620, 0x500
    struct.pack_into("<QQQQ", sregs, 224, cr0, 0, cr3, cr4)
    struct.pack_into("<Q", sregs, 264, efer)


def _make_cpu(kvm: int, vm: int, memory: mmap.mmap) -> int:
    with contextlib.suppress(OSError):  # older Intel hosts want it, others ignore or refuse it
        fcntl.ioctl(vm, _SET_TSS_ADDR, 8 * _MEMORY_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(vm, _SET_MEMORY, struct.pack("<IIQQQ", 0, 0, 0, _MEMORY_BYTES, address))
    cpu = fcntl.ioctl(vm, _CREATE_VCPU, 0)
    cpuid = bytearray(8 + 40 * _CPUID_ENTRIES)
    struct.pack_into("<I", cpuid, 0, _CPUID_ENTRIES)
    fcntl.ioctl(kvm, _GET_CPUID, cpuid)
    fcntl.ioctl(cpu, _SET_CPUID, cpuid)
    sregs = bytearray(_SREGS_BYTES)
    fcntl.ioctl(cpu, _GET_SREGS, sregs)
    _long_mode(sregs)
    fcntl.ioctl(cpu, _SET_SREGS, sregs)
    regs = bytearray(_REGS_BYTES)
    struct.pack_into("<QQ", regs, 128, _START, 2)  # rip, and rflags with its one fixed bit
    fcntl.ioctl(cpu, _SET_REGS, regs)
    return cpu


def _run(kvm: int, cpu: int) -> tuple[str, str]:
    """Return (what the guest said, why it ended); an empty reason is a guest that halted by itself."""
    said = ""
    with mmap.mmap(cpu, fcntl.ioctl(kvm, _MMAP_SIZE, 0)) as shared:
        while len(said) <= len(PASSED):
            fcntl.ioctl(cpu, _RUN, 0)
            reason = struct.unpack_from("<I", shared, 8)[0]
            if reason == _EXIT_HLT:
                return said, ""
            if reason != _EXIT_IO:
                return said, f"KVM exit {reason}"
            said += chr(shared[struct.unpack_from("<Q", shared, 40)[0]])
            # Told at once: when the next stretch never ends, the parent still learns how far it came.
            _tell({"said": said})
    return said, "it said too much"


def _tell(answer: dict[str, str]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def probe(device: str) -> dict[str, str]:
    """Return said (how far the guest came), and the step and error that ended it early."""
    said, step = "", "open"
    try:
        kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        step = "version"
        version = fcntl.ioctl(kvm, _API_VERSION, 0)
        if version != 12:
            return {"said": said, "step": step, "error": f"API version {version}"}
        step = "create"
        vm = fcntl.ioctl(kvm, _CREATE_VM, 0)
        step = "prepare"
        memory = _memory()
        cpu = _make_cpu(kvm, vm, memory)
        step = "run"
        said, error = _run(kvm, cpu)
    except OSError as problem:
        name = errno.errorcode.get(problem.errno or 0, str(problem.errno))
        return {"said": said, "step": step, "error": name}
    return {"said": said, "step": step if error else "", "error": error}


if __name__ == "__main__":
    signal.alarm(_LIFE_S)
    signal.alarm(5)  # a parent that was killed can't end a guest that spins
    _tell(probe(sys.argv[1] if len(sys.argv) > 1 else DEVICE))
    os._exit(0)  # nothing here is worth an orderly end, and a guest's memory is still exported
