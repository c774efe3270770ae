"""Classification of addresses as public or internal."""

import ipaddress

import pytest

from actgent.toolsets.http.internal_address_blocking import non_public_reason, parse_address

INSIDE = """
127.0.0.1 127.127.127.127 0.0.0.0 0.255.255.255 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.0.1 169.254.169.254
169.254.170.2 100.64.0.1 100.100.100.200 100.127.255.255 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.9
224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 168.63.129.16
:: ::1 fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 ff02::1 100::1 2001:db8::1 3fff::1 5f00::1 2001:2::1 2001:10::1
::ffff:127.0.0.1 ::ffff:192.168.1.1 ::ffff:a9fe:a9fe ::10.0.0.1 ::169.254.169.254 64:ff9b::169.254.169.254 64:ff9b::10.0.0.1
64:ff9b:1::192.168.1.1 2002:7f00:1:: 2002:c0a8:101::1 2002:6464:64c8:: 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:0:a00:1::
2606:4700::200:5efe:169.254.169.254 2606:4700::5efe:10.0.0.1 4000::1
""".split()
PUBLIC = """
1.1.1.1 8.8.8.8 172.32.0.1 100.128.0.1 11.0.0.1 192.169.0.1 9.255.255.255 223.255.255.255
2606:4700:4700::1111 2001:4860:4860::8888 2a00:1450:4001:82a::200e ::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1
""".split()


@pytest.mark.parametrize("address", INSIDE)
def test_internal_addresses_are_not_public(address):
    """Internal addresses are not public, also inside IPv6 addresses.

    Internal are loopback, private, link-local, metadata and multicast addresses.
    """
    assert non_public_reason(parse_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_public(address):
    """Public addresses are public, also inside IPv6 addresses."""
    assert non_public_reason(parse_address(address)) is None


def test_every_carried_address_is_judged_like_itself():
    """In a sample of all IPv4 addresses, mapped, NAT64 and 6to4 forms are as public as their IPv4 address."""
    for number in range(7, 2**32, 2**32 // 4001):
        plain = ipaddress.IPv4Address(number)
        expected = non_public_reason(plain) is None
        for carrier in (0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80 | 1):
            assert (non_public_reason(ipaddress.IPv6Address(carrier)) is None) is expected, (
                plain,
                hex(carrier),
            )
