"""Model settings: the source of each value, and the protection of API keys."""

import json

import pytest

from actgent import AgentBuilder, BareAgent, ConfigurationError, OpenAI, ScriptedLLM
from actgent.llm.model_settings import LLMSettings, load_settings

SECRET = "sk-canary-0123456789"


def test_arguments_go_before_environment_before_file():
    """For each setting an argument overrides the environment, and the environment overrides the file."""
    file = {"model": "f", "temperature": 0.1, "max_tokens": 1, "stream": True, "base_url": "http://f"}
    environment = {
        "LLM_MODEL": "e",
        "LLM_TEMPERATURE": "0.2",
        "LLM_MAX_TOKENS": "2",
        "LLM_PROVIDER_URL": "http://e",
    }
    settings = load_settings(file, environment=environment, model="a", temperature=0.3)
    assert settings == LLMSettings(model="a", temperature=0.3, max_tokens=2, stream=True, base_url="http://e")
    assert load_settings(file, environment={}) == LLMSettings(**file)
    assert load_settings(environment={}) == LLMSettings()


@pytest.mark.parametrize("source", ["file", "environment", "argument"])
def test_a_temperature_of_zero_is_a_value(source):
    """A temperature of 0 overrides other sources. An empty variable counts as unset."""
    file, environment, value = {"temperature": 1}, {"LLM_TEMPERATURE": "1"}, {}
    if source == "file":
        file, environment = {"temperature": 0}, {"LLM_TEMPERATURE": " "}
    elif source == "environment":
        environment = {"LLM_TEMPERATURE": "0"}
    else:
        value = {"temperature": 0}
    assert load_settings(file, environment=environment, **value).temperature == 0


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("FALSE", False), ("1", True), ("off", False), ("", None)]
)
def test_stream_mode_is_a_boolean_text(text, value):
    """LLM_STREAM_MODE is a boolean text in any case."""
    assert load_settings(environment={"LLM_STREAM_MODE": text}).stream is value


@pytest.mark.parametrize(
    ("model", "expected"),
    [("openai:m", "own"), ("m", "own"), ("anthropic:m", "other"), ("openai-responses:m", "own")],
)
def test_the_providers_own_variables_go_first(model, expected):
    """The provider's own variables override LLM_API_KEY and LLM_PROVIDER_URL, and these override the file."""
    environment = {
        "OPENAI_API_KEY": "own",
        "OPENAI_BASE_URL": "http://own",
        "ANTHROPIC_API_KEY": "other",
        "LLM_API_KEY": "general",
        "LLM_PROVIDER_URL": "http://general",
    }
    settings = load_settings({"api_key": "file"}, environment=environment, model=model)
    assert settings.api_key == expected
    assert settings.base_url == ("http://own" if expected == "own" else "http://general")
    assert load_settings({"api_key": "file"}, environment={}, model=model).api_key == "file"


@pytest.mark.parametrize("name", ["LLM_TEMPERATURE", "LLM_MAX_TOKENS", "LLM_STREAM_MODE"])
def test_a_wrong_variable_is_named_without_its_value(name):
    """The error names the variable and does not quote its value, which may be a secret."""
    with pytest.raises(ConfigurationError, match=name) as caught:
        load_settings(environment={name: SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [{"temperature": -1}, {"temperature": True}, {"max_tokens": 0}, {"temperature": "hot"}, {"modell": "x"}],
)
def test_wrong_arguments_are_refused(value):
    """Values out of range, other types and unknown names raise `ConfigurationError`."""
    with pytest.raises(ConfigurationError):
        load_settings(environment={}, **value)


async def test_settings_become_a_client(no_keys):
    """The client gets model, address, key and temperature. The reprs of client and settings hide the key."""
    settings = load_settings(
        "m", environment={}, api_key=SECRET, base_url="http://localhost:1", temperature=0
    )
    client = settings.build()
    assert isinstance(client, OpenAI)
    assert (client.name, client.base_url, client._key, client._temperature) == (
        "openai:m",
        "http://localhost:1",
        SECRET,
        0,
    )
    assert SECRET not in repr(client) + repr(settings)
    await client.aclose()


def test_missing_model_setting_raises_an_error(no_keys):
    """The error lists the three ways to set a model."""
    with pytest.raises(ConfigurationError, match=r"llm=.*LLM_MODEL.*brain.md"):
        load_settings(environment={}).build()


# --- providers of models --------------------------------------------------------------------------

UNKNOWN = {
    "foo:bar": "choose one of openai, openai-responses, anthropic",
    "opnai:gpt-5.2": "did you mean 'openai'",
    "OpenAI:gpt-5.2": "did you mean 'openai'",
    "antropic:claude": "did you mean 'anthropic'",
    "openai_responses:gpt-5.2": "did you mean 'openai-responses'",
    "llama3:8b": "openai:llama3:8b",
    ":gpt": "choose one of",
}


@pytest.mark.parametrize(("model", "says"), UNKNOWN.items())
@pytest.mark.parametrize("way", ["argument", "environment", "file", "builder", "folder"])
def test_unknown_providers_are_refused(model, says, way, monkeypatch, tmp_path):
    """An unknown provider raises an error with the known providers or the nearest one, and is not used as a model name."""
    monkeypatch.delenv("LLM_PROVIDER_URL", raising=False)
    monkeypatch.setenv("LLM_API_KEY", "key")
    (tmp_path / "brain.md").write_text(f"---\nname: x\nllm: {json.dumps(model)}\n---\n", encoding="utf-8")
    ways = {
        "argument": lambda: load_settings(environment={}, model=model, api_key="key").build(),
        "environment": lambda: load_settings(environment={"LLM_MODEL": model}).build(),
        "file": lambda: load_settings({"model": model}, environment={}).build(),
        "builder": lambda: AgentBuilder("x").llm(model).build(),
        "folder": lambda: AgentBuilder.from_folder(tmp_path).build(),
    }
    if way == "folder" and "" in model.split(":"):
        says = "brain.md:3: llm: expected PROVIDER:MODEL, but one of them is empty"
    with pytest.raises(ConfigurationError, match=says):
        ways[way]()


@pytest.mark.parametrize("model", ["foo:bar", "opnai:gpt-5.2"])
def test_an_agent_suggests_the_nearest_provider(model):
    """An agent whose `llm=` or `models=` has an unknown provider suggests a known one."""
    for options in ({"llm": model}, {"llm": ScriptedLLM(["x"]), "models": {"planning": model}}):
        with pytest.raises(
            ConfigurationError, match=r"did you mean 'openai'|the text is one of openai:MODEL"
        ):
            BareAgent("x", **options)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("gpt-5.2", "gpt-5.2"),
        ("ft:gpt-4o:org::id", "ft:gpt-4o:org::id"),
        ("openai:ft:gpt-4o:org::id", "ft:gpt-4o:org::id"),
        ("openai:llama3:8b", "llama3:8b"),
        (" openai : gpt-5.2 ", "gpt-5.2"),
    ],
)
async def test_model_name_may_contain_colons(model, asked, no_keys):
    """Model names with `ft:` or with a provider prefix may contain further colons."""
    client = load_settings(environment={}, model=model, api_key="key").build()
    assert client.name == f"openai:{asked}"
    await client.aclose()


@pytest.mark.parametrize("model", ["llama3:8b", "openchat:7b", "hf.co/org/model:Q4"])
async def test_model_name_at_a_custom_address_may_contain_colons(model, no_keys):
    """With LLM_PROVIDER_URL a name such as `llama3:8b` is a model name. A misspelled provider is still an error."""
    environment = {"LLM_MODEL": model, "LLM_PROVIDER_URL": "http://localhost:1", "LLM_API_KEY": "key"}
    client = load_settings(environment=environment).build()
    assert client.name == f"openai:{model}"
    await client.aclose()
    with pytest.raises(ConfigurationError, match="did you mean 'openai'"):
        load_settings(environment=environment, model="opnai:gpt-5.2").build()
