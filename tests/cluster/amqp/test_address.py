"""Addresses of brokers: what is read from them, what is refused, and that no password shows."""

import pytest

pytest.importorskip("pamqp", reason="the extra `cluster` is not installed")

from actgent.cluster.amqp import parse_broker
from actgent.errors import ConfigurationError


def test_an_address_names_hosts_user_and_virtual_host():
    """Escapes are read; each host has the port of its scheme unless it says another one."""
    address = parse_broker("amqps://ada:s%40cret@mq1,mq2:1234,[::1]:99/a%2Fb")
    assert address.hosts == (("mq1", 5671), ("mq2", 1234), ("::1", 99))
    assert (address.user, address.password, address.vhost) == ("ada", "s@cret", "a/b")
    assert address.tls is not None
    assert address.tls.check_hostname


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9:1", "[::1]"])
def test_plain_text_leads_to_this_machine(host):
    """Where nobody can listen in."""
    address = parse_broker(f"amqp://{host}")
    assert address.tls is None
    assert (address.user, address.password, address.vhost) == ("guest", "guest", "/")


@pytest.mark.parametrize("hosts", ["mq1", "10.0.0.1", "localhost,mq1", "localhost.example.com", "[::2]"])
def test_plain_text_beyond_this_machine_is_refused(hosts):
    """Unless the address says that the network is trusted."""
    with pytest.raises(ConfigurationError, match="plain text") as error:
        parse_broker(f"amqp://ada:s3cret@{hosts}/x")
    assert "s3cret" not in str(error.value)
    assert parse_broker(f"amqp://ada:s3cret@{hosts}/x?insecure=1").tls is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3cret",
        "http://ada:s3cret@mq1/x",
        "amqps://",
        "amqps://ada:s3cret@",
        "amqps://ada:s3cret@mq1:x/y",
        "amqps://ada:s3cret@mq1:99999/y",
        "amqps://ada:s3cret@mq1,,mq2/y",
        "amqps://ada:s3/cret@mq1/y",
        "amqps://ada:s3cret@mq1/y?verify=no",
        "amqps://ada:s3cret@mq1/y?cacertfile=/no/such/file",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url):
    """Whatever is wrong with it."""
    with pytest.raises(ConfigurationError) as error:
        parse_broker(url)
    assert "s3" not in str(error.value)


def test_an_address_shows_no_password():
    """In no text that is made of it."""
    address = parse_broker("amqps://ada:s3cret@mq1/x")
    assert "s3cret" not in f"{address} {address!r}"
    assert str(address) == "amqps://mq1:5671/x"
