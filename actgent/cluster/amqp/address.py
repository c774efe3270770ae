"""Where brokers are, and how to get in. A password shows in no text that is made here."""

import ipaddress
import ssl
import urllib.parse
from collections.abc import Mapping

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted

PORTS = {"amqp": 5672, "amqps": 5671}
KNOWN = frozenset({"insecure", "cacertfile", "certfile", "keyfile"})
"""The parameters of an address; those of files are named as RabbitMQ's own clients name them."""
FORM = "amqps://USER:PASSWORD@HOST1,HOST2/VHOST"


@attrs.frozen(kw_only=True)
class BrokerAddress:
    """One or several brokers of one cluster; made by `parse_broker`."""

    hosts: tuple[tuple[str, int], ...]
    """Names and ports, in the order in which they were given."""
    vhost: str = "/"
    """The virtual host."""
    user: str = "guest"
    """Who comes in."""
    password: str = attrs.field(default="guest", repr=False)
    """Their password."""
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False, eq=False)
    """What checks the brokers' certificates; None is a connection in plain text."""

    def __str__(self) -> str:
        scheme = "amqp" if self.tls is None else "amqps"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}/{urllib.parse.quote(self.vhost, safe='')}"


def parse_broker(url: str) -> BrokerAddress:
    """The brokers of an address such as `amqps://ada:secret@mq1,mq2:5671/agents`.

    Without a port it is 5671, for `amqp://` 5672; without a virtual host it is `/`. `?cacertfile=` names the authority that
    signed the brokers' certificates, if the system does not know it, `certfile=` and `keyfile=` a certificate of our own.
    `amqp://` leads to this machine only, unless `?insecure=1` says that the network between is trusted.

    Raises:
        ConfigurationError: it is no such address, or a file of certificates cannot be read.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in PORTS or not rest:
        raise ConfigurationError(f"the broker's address is not of the form {FORM}")
    around, _, query = rest.partition("?")
    authority, _, path = around.partition("/")
    login, _, places = authority.rpartition("@")
    options = _read_options(query)
    hosts = tuple(_read_place(place, PORTS[scheme]) for place in places.split(","))
    if scheme == "amqp" and options.get("insecure") != "1":
        _check_loopback(hosts)
    user, colon, password = login.partition(":")
    return BrokerAddress(
        hosts=hosts,
        vhost=urllib.parse.unquote(path) or "/",
        user=urllib.parse.unquote(user) if login else "guest",
        password=urllib.parse.unquote(password) if colon else "guest" if not login else "",
        tls=_make_tls(options) if scheme == "amqps" else None,
    )


def _read_options(query: str) -> Mapping[str, str]:
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(set(options) - KNOWN):
        raise ConfigurationError(
            f"the broker's address has an unknown parameter {quoted(unknown[0])}; there are {', '.join(sorted(KNOWN))}"
        )
    return options


def _read_place(place: str, default: int) -> tuple[str, int]:
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = place.partition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16 if port else True):
        # It is not quoted: where the form is another one, this may be a piece of the password.
        raise ConfigurationError(
            f"the broker's address is not of the form {FORM}: a host or port is wrong; "
            "characters such as @, / and ? in a password are written as %40, %2F and %3F"
        )
    return host, int(port) if port else default


def _check_loopback(hosts: tuple[tuple[str, int], ...]) -> None:
    for host, _ in hosts:
        if not _is_loopback(host):
            raise ConfigurationError(
                f"amqp:// to {quoted(host)} would send the password and all messages in plain text: use amqps://, or add "
                "?insecure=1 if the network between is trusted"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _make_tls(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("cacertfile"))
        if "certfile" in options:
            context.load_cert_chain(options["certfile"], options.get("keyfile"), password="")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"a file of the broker's address cannot be used: {error}") from error
    return context
