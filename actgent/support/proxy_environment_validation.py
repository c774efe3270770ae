"""Validation of the environment variables that HTTP clients read: proxies and certificates.

HTTP libraries raise FileNotFoundError, ImportError or ValueError without the name of the variable; these errors name it.
"""

import importlib.util
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from actgent.errors import ActgentError, ConfigurationError

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_SCHEMES = ("http", "https", "socks5", "socks5h")
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@contextmanager
def reading_environment() -> Iterator[None]:
    """Validate the environment variables for HTTP clients before the block, which creates an HTTP client.

    If the block fails, add the names of the variables that are set to its error.

    Raises:
        ConfigurationError: A variable names a file, folder or proxy that cannot be used.
    """
    _check_certificates()
    _check_proxies()
    try:
        yield
    except (ActgentError, ModuleNotFoundError):
        raise
    except (OSError, ImportError, ValueError) as error:  # ssl.SSLError and InvalidURL are among these
        if not (name := _set_variables()):
            raise
        reason = str(error) or type(error).__name__
        raise ConfigurationError(
            f"cannot create an HTTP client with the current value of {name}: {reason}"
        ) from error


def _check_certificates() -> None:
    for name, is_there, kind in (
        ("SSL_CERT_FILE", Path.is_file, "file"),
        ("SSL_CERT_DIR", Path.is_dir, "folder"),
    ):
        if (value := os.environ.get(name)) and not any(
            is_there(Path(each)) for each in value.split(os.pathsep)
        ):
            raise ConfigurationError(
                f"{name} is {value[:300]!r}, but this is no existing {kind}: correct the variable, or unset it"
            )
    if file := os.environ.get("SSL_CERT_FILE"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(
                f"SSL_CERT_FILE is {file[:300]!r}, and its certificates cannot be read ({error}): correct the variable, or unset it"
            ) from None


def _check_proxies() -> None:
    for name in (variable for proxy in _PROXIES for variable in (proxy, proxy.upper())):
        value = os.environ.get(name, "").strip()
        if not value or (
            name == "HTTP_PROXY" and "REQUEST_METHOD" in os.environ
        ):  # under CGI the client controls HTTP_PROXY
            continue
        # A proxy address may contain a password, so no error quotes it.
        try:
            address = urlsplit(value if "://" in value else f"http://{value}")
            is_usable = bool(address.scheme.lower() in _SCHEMES and address.hostname and address.port != 0)
        except ValueError:
            is_usable = False
        if not is_usable:
            raise ConfigurationError(
                f"{name} is not the address of a proxy: write it as in http://proxy.example:3128, or unset it"
            )
        if address.scheme.lower().startswith("socks") and importlib.util.find_spec("socksio") is None:
            raise ConfigurationError(
                f"{name} names a SOCKS proxy, which requires the package socksio: pip install 'httpx2[socks]', or unset it"
            )


def _set_variables() -> str:
    """Return the names of the variables that are set, separated by commas; empty if none is set."""
    return ", ".join(name for name in _VARIABLES if os.environ.get(name) or os.environ.get(name.lower()))
