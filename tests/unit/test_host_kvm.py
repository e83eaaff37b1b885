"""How the KVM probe's words are judged, and that it never outlives its deadline."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest

from troupe_tasks.errors import ToolFailed, ToolTimeout
from troupe_tasks.host import kvm_probe
from troupe_tasks.host.kvm import DEADLINE_S, KvmState, check
from troupe_tasks.process import Done


def judged(printed: bytes) -> tuple[KvmState, str]:
    found = check(start=lambda _: Done(0, printed, b""))
    return found.state, found.detail


@pytest.mark.parametrize(
    ("printed", "state", "detail"),
    [
        (b'{"said":"L"}\n{"said":"LFS","step":"","error":""}\n', KvmState.WORKS, "a long loop and SSE"),
        (b'{"said":"","step":"open","error":"ENOENT"}', KvmState.ABSENT, "there is no /dev/kvm"),
        (b'{"said":"","step":"open","error":"ENXIO"}', KvmState.ABSENT, "there is no"),
        (b'{"said":"","step":"open","error":"EACCES"}', KvmState.DENIED, "may not open"),
        (b'{"said":"","step":"open","error":"EPERM"}', KvmState.DENIED, "may not open"),
        (b'{"said":"","step":"create","error":"EBUSY"}', KvmState.BUSY, "another hypervisor"),
        (b'{"said":"","step":"create","error":"ENOMEM"}', KvmState.BROKEN, "create: ENOMEM"),
        (b'{"said":"","step":"version","error":"ENOTTY"}', KvmState.BROKEN, "version: ENOTTY"),
        (b'{"said":"","step":"prepare","error":"EINVAL"}', KvmState.BROKEN, "prepare: EINVAL"),
        (b'{"said":"LF","step":"run","error":"KVM exit 17"}', KvmState.BROKEN, "failed at SSE instructions"),
        (b'{"said":"LF","step":"","error":""}', KvmState.BROKEN, "wrong answer"),
        (b"", KvmState.BROKEN, "failed"),
        (b'\xff\xfe[1]\n{"said": [1]}', KvmState.BROKEN, "failed"),
    ],
)
def test_each_way_to_fail_is_told_apart(printed: bytes, state: KvmState, detail: str) -> None:
    found = judged(printed)
    assert found[0] is state
    assert detail in found[1]


@pytest.mark.parametrize(
    ("said", "stage"), [(b"", "64-bit code"), (b'{"said":"L"}', "a long loop"), (b'{"said":"LF"}', "SSE")]
)
def test_a_guest_that_hangs_is_not_working_and_says_where(said: bytes, stage: str) -> None:
    def hangs(_: Sequence[str | Path]) -> Done:
        error = ToolTimeout("the probe did not end")
        error.done = Done(-9, said, b"")
        raise error

    found = check(start=hangs)
    assert found.state is KvmState.BROKEN
    assert stage in found.detail


def test_a_probe_that_dies_is_not_working() -> None:
    def dies(_: Sequence[str | Path]) -> Done:
        raise ToolFailed("python ended with status 1")

    assert check(start=dies).state is KvmState.BROKEN


def test_a_device_that_is_not_there_is_absent(tmp_path: Path) -> None:
    assert check(tmp_path / "kvm").state is KvmState.ABSENT


def test_a_file_that_is_no_kvm_is_not_working(tmp_path: Path) -> None:
    (tmp_path / "kvm").touch()
    assert check(tmp_path / "kvm").state is KvmState.BROKEN


def test_this_machines_kvm_is_judged_within_the_deadline() -> None:
    began = monotonic()
    assert check().state in KvmState
    assert monotonic() - began < DEADLINE_S + 3.0


def test_the_guest_starts_at_its_code_with_a_page_that_maps_it() -> None:
    memory = kvm_probe._memory()
    assert memory[0x8000 : 0x8000 + len(kvm_probe.CODE)] == kvm_probe.CODE
    assert kvm_probe.CODE.endswith(b"\xee\xf4")
    assert struct.unpack_from("<Q", memory, 0x5000)[0] == 0x83


def test_the_registers_are_those_of_64_bit_code() -> None:
    sregs = bytearray(312)
    kvm_probe._long_mode(sregs)
    assert sregs[:24] == struct.pack("<QIH10B", 0, 0xFFFFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0, 0)
    assert struct.unpack_from("<QQQQ", sregs, 224) == (0x80010033, 0, 0x3000, 0x620)
    assert struct.unpack_from("<Q", sregs, 264) == (0x500,)
