"""Only plain public addresses are let through, whatever clothes the others wear."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.egress.address import why_refused

PRIVATE = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.168.1.1", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9",
    "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "2002:7f00:1::",
    "2002:808:808::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
    "2606:4700::5efe:a00:1", "2606:4700::200:5efe:808:808", "4000::1", "", "example.org", "0x7f.1", "2130706433",
]  # fmt: skip


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused_with_a_reason(text: str) -> None:
    assert why_refused(text)


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_let_through(text: str) -> None:
    assert why_refused(text) == ""


@given(st.ip_addresses(v=4))
def test_a_carried_address_is_never_more_welcome_than_itself(inner: IPv4Address) -> None:
    number = int(inner)
    forms = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address(number),
        IPv6Address((0x0064FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
        IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),
    ]
    if why_refused(str(inner)):
        assert all(why_refused(str(form)) for form in forms)


@given(st.ip_addresses())
def test_nothing_is_let_through_that_python_calls_private(found: IPv4Address | IPv6Address) -> None:
    if (
        found.is_private
        or found.is_loopback
        or found.is_link_local
        or found.is_multicast
        or found.is_reserved
    ):
        carried = isinstance(found, IPv6Address) and str(found).startswith("64:ff9b::")
        assert why_refused(str(found)) or carried
