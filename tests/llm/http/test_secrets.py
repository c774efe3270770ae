"""Errors show no key or header value, complete or in part."""

import pytest
from hypothesis import given, strategies as st

from actgent import Anthropic, BareAgent, OpenAI, OpenAIResponses
from actgent.errors import ActgentError, ConfigurationError, ModelError
from actgent.llm.http.provider_errors import provider_error
from actgent.llm.http.secret_removal import Secrets
from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.llm.retry_policy import Retry
from actgent.messages import Text
from actgent.testing import open_provider

KEY = "sk-proj-Zk81QmVd0pWx44Lr"
SECRETS = Secrets((KEY, "gw-4711-secret-9x"))
CLIENTS = (OpenAI, OpenAIResponses, Anthropic)


@pytest.mark.parametrize(
    "echo",
    [
        KEY,
        "sk-proj-********44Lr",
        "sk-proj-...44Lr.",
        "sk-proj-Zk81…",
        "sk-pxxxxxxxxx4Lr",
        "***********44Lr",
        "key ending in 44Lr",
        "'Zk81QmVd0pWx'",
        "(sk-proj-Zk81QmVd)",
        f"Bearer {KEY}",
        f"https://x/?key={KEY[:12]}&v=1",
        f"{KEY}{KEY}",
        "gw-4711-se",
        "x-gateway: **********et-9x",
    ],
)
def test_partially_echoed_key_is_redacted(echo):
    """The error replaces the words that contain a part of the key and keeps the rest."""
    error = provider_error(
        {
            "message": f"Incorrect API key provided: {echo} Find yours at https://example.com/keys",
            "code": echo,
        },
        model="m",
        secrets=SECRETS,
        headers={},
        status=401,
    )
    error_text = f"{error} {error.code}"
    assert "[api key]" in error_text
    assert "Incorrect API key provided" in error_text
    assert "https://example.com/keys" in error_text
    for secret in (KEY, "gw-4711-secret-9x"):
        assert not any(secret[at : at + 5] in error_text for at in range(len(secret) - 4))


@given(st.text(alphabet="abkeysk-1 .*", max_size=60), st.integers(0, 16), st.integers(8, 24))
def test_no_eight_characters_of_a_key_appear(words, start, length):
    """Redaction leaves no eight consecutive characters of a key at any position of the text."""
    echo = KEY[start : start + length]
    blotted = SECRETS.redact(f"{words}{echo}{words}")
    assert not any(KEY[at : at + 8] in blotted for at in range(len(KEY) - 7))


def test_placeholder_keys_redact_nothing():
    """Placeholder keys such as "none" and "test" redact nothing."""
    assert Secrets(("none", "test")).redact("none of the tests") == "none of the tests"
    assert SECRETS.redact("The model gpt-5 does not exist.") == "The model gpt-5 does not exist."


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Key": "gw-SECRET-é123"},
        {"X-Key": "gw-SECRET\r\nX-Other: 1"},
        {"X-Key": "gw-SECRET\x00"},
        {"gw-SECRET\n": "x"},
        {"gw SECRET": "x"},
        {"": "gw-SECRET"},
        {"X-Key": b"gw-SECRET"},
        {"X-One": "1", "X-Key": "gw-SECRET\x1b"},
    ],
)
def test_invalid_header_is_rejected_without_its_name(client, headers):
    """The constructor rejects an invalid header. The error has its position, without its name or value."""
    with pytest.raises(ConfigurationError, match=r"header [12] ") as caught:
        client("m", api_key=KEY, base_url="http://127.0.0.1:9", extra_headers=headers)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_line_ends_around_a_header_value_are_stripped():
    """Line ends around a header value are stripped, as for `api_key=`."""
    async with open_provider(["hi"]) as provider:
        llm = OpenAI(
            "gpt",
            base_url=provider.base_url,
            api_key=KEY,
            extra_headers={"X-Gateway-Key": " gw-SECRET-123\n"},
        )
        async with BareAgent("a", llm=llm) as agent:
            assert (await agent.run("hi")).text == "hi"
        await llm.aclose()
        assert provider.requests[0].headers["x-gateway-key"] == "gw-SECRET-123"


async def test_headers_of_a_custom_client_are_not_shown():
    """Errors of HTTP libraries that quote a rejected request are redacted."""
    import httpx2

    async with httpx2.AsyncClient(headers={"X-Key": "gw-SECRET-123\n"}) as own:
        llm = OpenAI("gpt", base_url="http://127.0.0.1:9", api_key=KEY, http_client=own)
        async with BareAgent("a", llm=llm) as agent:
            with pytest.raises(ActgentError) as caught:
                await agent.run("hi")
    error = caught.value
    while error is not None:
        assert "SECRET" not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [200, 401, 403, 429, 500])
async def test_credentials_in_a_url_are_not_shown(client, status, caplog):
    """URL credentials are sent as a header, because HTTP libraries log URLs.

    Errors that quote the URL are redacted.
    """
    import httpx2

    quoted = f"{KEY} pa55-word-of-ada token=query-secret-77\x1b[2J\nforged"

    def answer(request):
        assert request.headers["authorization"] == "Basic YWRhOnBhNTUtd29yZC1vZi1hZGE="
        assert "pa55" not in str(request.url)
        body = {"error": {"message": quoted, "code": quoted}}
        return httpx2.Response(status, json=body, headers={"x-request-id": f"r-{KEY}-pa55-word-of-ada"})

    caplog.set_level("INFO")
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as own:
        llm = client(
            "gpt",
            base_url="https://ada:pa55-word-of-ada@api.example/v1?api_token=query-secret-77",
            api_key=KEY,
            http_client=own,
            retry=Retry(attempts=1),
        )
        with pytest.raises(ModelError) as caught:
            await llm.complete(ModelRequest(messages=(ChatMessage("user", (Text("hi"),)),)))
    text = f"{caught.value!r} {caught.value} {caught.value.code} {caught.value.request_id} {llm!r} {llm.base_url}"
    for secret in (KEY, "pa55-word-of-ada"):
        assert not any(secret[at : at + 5] in f"{text} {caplog.text}" for at in range(len(secret) - 4))
    assert "query-se" not in str(caught.value)
    assert "api key" in caught.value.request_id
    assert caught.value.code.isprintable()
