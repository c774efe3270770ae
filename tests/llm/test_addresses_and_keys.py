"""Addresses and keys of providers.

An empty argument never selects the public address or a key from the environment.
"""

import pytest

from actgent import Anthropic, BadRequest, BareAgent, ConfigurationError, MissingKey, OpenAI, OpenAIResponses
from actgent.llm.model_resolution import PROVIDERS, key_variables, resolve_model, url_variables
from actgent.llm.model_settings import LLMSettings, load_settings
from actgent.testing import open_provider

NAMED = {
    provider: lambda provider=provider, **options: resolve_model(f"{provider}:m", **options)
    for provider in PROVIDERS
}
CLIENTS = {
    **NAMED,
    "OpenAI": lambda **options: OpenAI("m", **options),
    "OpenAIResponses": lambda **options: OpenAIResponses("m", **options),
    "Anthropic": lambda **options: Anthropic("m", **options),
    "settings": lambda **options: LLMSettings(model="openai:m", **options).build(),
    "loaded settings": lambda **options: load_settings(model="anthropic:m", **options).build(),
}


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    """Set a key and no address for every provider in the environment."""
    for provider in PROVIDERS:
        for variable in key_variables(provider):
            monkeypatch.setenv(variable, "key-of-the-environment")
        for variable in (*url_variables(provider), "LLM_PROVIDER_URL"):
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("value", ["", " ", "\t\n"])
@pytest.mark.parametrize("argument", ["base_url", "api_key"])
def test_empty_argument_is_rejected(client, argument, value):
    """An empty argument used to send the conversation to the public address or with a different key."""
    options = {"base_url": "http://127.0.0.1:1/v1", argument: value}
    with pytest.raises(ConfigurationError, match=rf"{argument}= must not be empty: fill it in, or omit it"):
        CLIENTS[client](**options)


@pytest.mark.parametrize("value", [5, b"http://x.example", ["http://x.example"]])
@pytest.mark.parametrize("argument", ["base_url", "api_key"])
def test_non_text_argument_is_rejected(argument, value):
    """The error names the type and never the value, which may be a key."""
    with pytest.raises(
        ConfigurationError, match=rf"{argument}= must be a string, not {type(value).__name__}"
    ):
        OpenAI("m", **{"base_url": "http://127.0.0.1:1/v1", argument: value})


def test_none_uses_the_variables(monkeypatch):
    """None has the same effect as an omitted argument."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert OpenAI("m", base_url=None, api_key=None).base_url == "http://127.0.0.1:1/v1"


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_is_not_set(monkeypatch, value):
    """An empty variable counts as unset, because shells and containers export them.

    The next source is used.
    """
    monkeypatch.setenv("OPENAI_BASE_URL", value)
    assert OpenAI("m").base_url == "https://api.openai.com/v1"
    monkeypatch.setenv("LLM_PROVIDER_URL", "http://127.0.0.1:1/v1")
    assert OpenAI("m").base_url == "http://127.0.0.1:1/v1"
    monkeypatch.delenv("LLM_PROVIDER_URL")
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(MissingKey):
        OpenAI("m")


def test_azure_requires_an_address():
    """Each Azure resource has its own address. The error names the variables and the format."""
    with pytest.raises(ConfigurationError) as caught:
        resolve_model("azure:m")
    assert str(caught.value) == (
        "Azure OpenAI requires the URL of your resource, such as https://RESOURCE.openai.azure.com: "
        "pass base_url=..., or set AZURE_OPENAI_BASE_URL or AZURE_OPENAI_ENDPOINT"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "): add /v1 to base_url= (or OPENAI_BASE_URL or LLM_PROVIDER_URL)"),
        ("/openai/v1/chat/completions", "remove /chat/completions from the end of base_url="),
        ("/other/v1", "check base_url= (or OPENAI_BASE_URL or LLM_PROVIDER_URL) and the model's name"),
    ],
)
async def test_wrong_path_of_base_url_is_reported(path, expected):
    """The server answers 404 without a reason. The error names the host and the path that base_url= lacks."""
    async with open_provider(["Yes."]) as provider:
        host = provider.openai_url.split("/")[2]
        llm = OpenAI("m", base_url=f"http://{host}{path}", api_key="k")
        async with BareAgent("clerk", llm=llm) as clerk:
            with pytest.raises(BadRequest) as caught:
                await clerk.run("hi")
        await llm.aclose()
    assert expected in str(caught.value)
    assert host in str(caught.value)


@pytest.mark.parametrize("line", ["OPENAI_API_KEY=sk-1", "export OPENAI_API_KEY = 'sk-1'"])
def test_unread_env_file_is_named_in_the_error(tmp_path, monkeypatch, line):
    """The error names the .env file and the way to load it, without the key."""
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"# keys\nOTHER=1\n{line}\n")
    with pytest.raises(MissingKey) as caught:
        OpenAI("m")
    assert "actgent does not read .env, which has OPENAI_API_KEY: run `set -a; . ./.env` first" in str(
        caught.value
    )
    assert "sk-1" not in str(caught.value)
    (tmp_path / ".env").write_text("OTHER_OPENAI_API_KEY=1\n")
    with pytest.raises(MissingKey) as caught:
        OpenAI("m")
    assert ".env" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"temperature": "0.2"},
            "temperature= must be a number of at least 0 (most models accept up to 2), not '0.2'",
        ),
        ({"temperature": -1}, "temperature= must be a number"),
        ({"temperature": float("nan")}, "temperature= must be a number"),
        ({"max_tokens": 0}, "max_tokens= must be a whole number of at least 1, not 0"),
        ({"max_tokens": "100"}, "max_tokens= must be a whole number of at least 1, not '100'"),
        ({"timeout": "30s"}, "timeout= must be a number of seconds above 0, or None for no limit, not '30s'"),
        ({"timeout": 0}, "timeout= must be a number of seconds above 0"),
        ({"stream": "no"}, "stream= must be True or False, not 'no'"),
        ({"extra_body": ["a"]}, "extra_body= must be a dict, not a list"),
        ({"retry": 3}, "retry= must be Retry(...), not 3"),
        ({"rate_limiter": 3}, "rate_limiter= must be RateLimiter(...), not 3"),
    ],
)
@pytest.mark.parametrize("client", [OpenAI, Anthropic])
def test_client_settings_of_a_wrong_type_are_rejected(client, options, expected):
    """The constructor rejects the value. Earlier, only the first call or the provider did."""
    with pytest.raises(ConfigurationError) as caught:
        client("m", api_key="k", **options)
    assert expected in str(caught.value)


@pytest.mark.parametrize("client", [OpenAI, Anthropic])
def test_missing_model_argument_is_an_error(client):
    """The error names the called class and the missing argument."""
    with pytest.raises(TypeError, match=rf"{client.__name__}\(\) needs model=: write the model's name first"):
        client(api_key="k")
