"""Model names to clients, with SDKs imported on use."""

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
def test_text_before_the_first_colon_is_the_provider(monkeypatch, text, kind, model):
    """The text before the first colon is the provider. The model name may contain colons."""
    monkeypatch.setenv("LLM_API_KEY", "key")
    client = resolve_model(text)
    assert type(client).__name__ == kind
    assert client.name == f"{text.partition(':')[0].strip()}:{model}"


def test_llm_object_is_returned_unchanged():
    model = ScriptedLLM(["x"])
    assert resolve_model(model) is model


@pytest.mark.parametrize("wrong", ["", "gpt-5.2", "openai:", ":gpt", "google:gemini", "OpenAI:gpt", None, 7])
def test_invalid_model_names_are_rejected(wrong):
    """The error lists the allowed forms."""
    with pytest.raises(ConfigurationError, match="openai:MODEL, openai-responses:MODEL, anthropic:MODEL"):
        resolve_model(wrong)


def test_missing_key_raises_when_the_model_is_resolved():
    """A missing key raises when the model is resolved, before the first call."""
    with pytest.raises(MissingKey):
        resolve_model("openai:gpt-5.2")


def test_sdks_are_imported_only_when_a_client_is_made():
    """Importing the models package and the client classes imports no SDK."""
    code = (
        "import sys, actgent.llm.model_resolution, actgent.llm.scripted_model, actgent.llm.fallback_model\n"
        "assert not {'httpx2', 'openai', 'anthropic'} & set(sys.modules)\n"
        "import actgent.llm.clients.openai, actgent.llm.clients.openai_responses, actgent.llm.clients.anthropic\n"
        "assert not {'openai', 'anthropic', 'genai_prices'} & set(sys.modules)\n"
        "actgent.llm.clients.openai.OpenAI('m', api_key='k')\n"
        "assert 'openai' in sys.modules and 'anthropic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
