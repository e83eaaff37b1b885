"""Judge an address that a name resolved to: only plain, public, unicast ones are let through.

The lists follow IANA's special-purpose registries (RFC 6890 and its updates). Forms that carry an IPv4
address inside an IPv6 one are refused whole, but for NAT64 (RFC 6052), which networks without IPv4 need and
which is judged by the address it carries.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_V4 = tuple(
    (IPv4Network(network), why)
    for network, why in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier's customers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local, where clouds keep metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved for documents"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documents"),
        ("203.0.113.0/24", "reserved for documents"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        # Public by number, yet a cloud's own: Azure's and Alibaba's metadata and platform endpoints.
        ("168.63.129.16/32", "a cloud's metadata"),
        ("100.100.100.200/32", "a cloud's metadata"),
    )
)
_V6 = tuple(
    (IPv6Network(network), why)
    for network, why in (
        ("::1/128", "loopback"),
        ("::/128", "unspecified"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6 clothes"),
        ("::/96", "an IPv4 address in IPv6 clothes"),
        ("64:ff9b:1::/48", "private NAT64"),
        ("100::/64", "discard-only"),
        ("2001::/23", "Teredo or reserved"),
        ("2001:db8::/32", "reserved for documents"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "reserved for documents"),
        ("fc00::/7", "private, where clouds keep metadata"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_ISATAP = (0x00005EFE, 0x02005EFE)


def why_refused(text: str) -> str:
    """Return why an address may not be reached, or nothing when it may; what is no address may not."""
    try:
        found = ip_address(text)
    except ValueError:
        return "not an address"
    return _why_v4(found) if isinstance(found, IPv4Address) else _why_v6(found)


def _why_v4(found: IPv4Address) -> str:
    for network, why in _V4:
        if found in network:
            return why
    return "" if found.is_global else "not a public address"


def _why_v6(found: IPv6Address) -> str:
    if found.scope_id is not None:
        return "bound to one of this machine's links"
    if found in _NAT64:
        return _why_v4(IPv4Address(int(found) & 0xFFFFFFFF))
    for network, why in _V6:
        if found in network:
            return why
    if (int(found) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "an IPv4 address in IPv6 clothes"
    return "" if found in _GLOBAL_UNICAST and found.is_global else "not a public address"
