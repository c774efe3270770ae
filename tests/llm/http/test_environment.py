"""Invalid proxy and certificate variables: the error names the variable and shows no secret."""

import importlib.util

import httpx2
import pytest

from actgent import Anthropic, ConfigurationError, OpenAI, OpenAIResponses
from actgent.client.http.http_transport import HTTPTransport

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
WRONG = [
    ("SSL_CERT_FILE", "/nonexistent/cacert.pem", "/nonexistent/cacert.pem"),
    ("SSL_CERT_FILE", "/tmp", "no existing file"),
    ("SSL_CERT_DIR", "/nonexistent/certs", "/nonexistent/certs"),
    ("HTTPS_PROXY", "ftp://proxy:1", "address of a proxy"),
    ("https_proxy", "http://", "address of a proxy"),
    ("HTTP_PROXY", "http://ada:s3cretword@proxy:port", "address of a proxy"),
    ("ALL_PROXY", "htp://ada:s3cretword@x", "address of a proxy"),
    ("all_proxy", "socks4://proxy:1080", "address of a proxy"),
]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """Remove the machine's proxy and certificate variables."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(params=["openai", "openai-responses", "anthropic", "gateway"])
def make(request):
    """Run the test for each client that reads the environment."""
    made = {
        "openai": lambda: OpenAI("m", api_key="k"),
        "openai-responses": lambda: OpenAIResponses("m", api_key="k"),
        "anthropic": lambda: Anthropic("m", api_key="k"),
        "gateway": lambda: HTTPTransport("http://localhost:1", token="t" * 20),
    }
    return made[request.param]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_unusable_variable_is_reported(make, monkeypatch, name, value, expected):
    """Each client raises a ConfigurationError that names the variable and hides the password."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name) as caught:
        make()
    assert expected in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_certificate_file_without_certificates_is_reported(make, monkeypatch, tmp_path):
    """The error names the file, which the library's own error omits."""
    file = tmp_path / "cacert.pem"
    file.write_text("nothing", encoding="utf-8")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(ConfigurationError, match="SSL_CERT_FILE"):
        make()


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "SOCKS5"])
def test_socks_proxy_without_its_package_is_an_error(make, monkeypatch, scheme):
    """Without the SOCKS package, the error names the variable and the package to install."""
    found = importlib.util.find_spec
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://ada:s3cretword@proxy:1080")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "socksio" else found(name))
    with pytest.raises(ConfigurationError, match=r"ALL_PROXY.*pip install") as caught:
        make()
    assert "s3cret" not in str(caught.value)


async def test_usable_variables_are_used(monkeypatch, tmp_path):
    """Blank proxies, proxies without a scheme and NO_PROXY lists are valid.

    A custom HTTP client reads no variable.
    """
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://[::1]:3128")
    monkeypatch.setenv("ALL_PROXY", " ")
    monkeypatch.setenv("NO_PROXY", "localhost, ::1, [::1]:80, *.example, 10.0.0.0/8, what is this")
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    await OpenAI("m", api_key="k").aclose()
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    async with httpx2.AsyncClient(trust_env=False) as client:
        OpenAI("m", api_key="k", http_client=client)
