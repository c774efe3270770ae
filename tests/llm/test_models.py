"""From text to a client, without paying for what is not used."""

import subprocess
import sys

import pytest

from actgent.errors import ConfigurationError, MissingKey
from actgent.llm.model_resolution import resolve_model
from actgent.llm.scripted_model import ScriptedLLM


@pytest.mark.parametrize(
    ("text", "kind", "model"),
    [
        ("openai:gpt-5.2", "OpenAI", "gpt-5.2"),
        ("openai-responses:gpt-5.2", "OpenAIResponses", "gpt-5.2"),
        ("anthropic:claude-sonnet-4-5", "Anthropic", "claude-sonnet-4-5"),
        (" openai : meta/llama:70b ", "OpenAI", "meta/llama:70b"),
    ],
)
def test_names(monkeypatch, text, kind, model):
    """The provider stands before the first colon; the model may have more of them."""
    monkeypatch.setenv("LLM_API_KEY", "key")
    client = resolve_model(text)
    assert type(client).__name__ == kind
    assert client.name == f"{text.partition(':')[0].strip()}:{model}"


def test_a_client_is_itself():
    """An LLM comes back as it is."""
    model = ScriptedLLM(["x"])
    assert resolve_model(model) is model


@pytest.mark.parametrize("wrong", ["", "gpt-5.2", "openai:", ":gpt", "google:gemini", "OpenAI:gpt", None, 7])
def test_wrong_names(wrong):
    """The error names all that is allowed."""
    with pytest.raises(ConfigurationError, match="openai:MODEL, openai-responses:MODEL, anthropic:MODEL"):
        resolve_model(wrong)


def test_a_missing_key():
    """The key is asked for when the model is named, not at the first call."""
    with pytest.raises(MissingKey):
        resolve_model("openai:gpt-5.2")


def test_sdks_are_imported_only_when_a_client_is_made():
    """Importing the room of models, and even the client classes, costs no SDK."""
    code = (
        "import sys, actgent.llm.model_resolution, actgent.llm.scripted_model, actgent.llm.fallback_model\n"
        "assert not {'httpx2', 'openai', 'anthropic'} & set(sys.modules)\n"
        "import actgent.llm.clients.openai, actgent.llm.clients.openai_responses, actgent.llm.clients.anthropic\n"
        "assert not {'openai', 'anthropic', 'genai_prices'} & set(sys.modules)\n"
        "actgent.llm.clients.openai.OpenAI('m', api_key='k')\n"
        "assert 'openai' in sys.modules and 'anthropic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
