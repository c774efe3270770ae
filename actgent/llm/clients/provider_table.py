"""Table of the providers with an OpenAI-compatible API: base URL, environment variables, and differences from OpenAI.

The clients are in `openai_compatible.py`. Other providers are used with `OpenAI(model, base_url=...)`.
"""

from collections.abc import Mapping

import attrs

from actgent.support.attrs_class_repr import FieldRepr


@attrs.frozen(kw_only=True, repr=False)
class CompatibleProvider(FieldRepr):
    """Row of the provider table: a provider with an OpenAI-compatible API, and the differences of its API from OpenAI's."""

    title: str
    """Display name of the provider."""
    key: tuple[str, ...]
    """Environment variables that may hold the API key, in the order in which they are read."""
    url: tuple[str, ...]
    """Environment variables that may hold the base URL, in the order in which they are read."""
    address: str
    """Base URL of the API; `REGION` in it is replaced by AWS_REGION. Empty if each user has a different URL."""
    example: str = ""
    """Example of a user's base URL, for errors if `address` is empty."""
    path: str = ""
    """Path that is appended to a base URL without `/v1` at its end; empty for none."""
    limit: str = "max_tokens"
    """Name of the request field for the maximum answer tokens."""
    has_stream_options: bool = True
    """False if the provider rejects the field `stream_options`, and reports usage in streams without it."""
    json_schema_models: str = ""
    """Regular expression of the models that accept a JSON Schema as response format. From other models, any JSON object is
    requested. The prompt contains the schema, and answers are validated with it in any case."""
    format_with_tools: str = ""
    """Regular expression of the models that accept a response format together with tools. Other models get the
    format only without tools.
    """
    id_length: int = 0
    """Required length of tool call ids, which must be letters and digits; 0 if OpenAI's ids are accepted."""
    reasoning: str = ".*"
    """Regular expression of the names of reasoning fields that the provider accepts in later requests."""
    takes_unknown_fields: bool = True
    """True if response fields that OpenAI does not define must be sent back, such as Gemini's signatures."""
    decodes_arguments: bool = True
    """True if the provider decodes the arguments of earlier tool calls, so that they must be JSON objects."""
    has_user_after_tool: bool = True
    """False if the provider rejects a user message directly after a tool message. A short assistant message is inserted then."""
    alternates: bool = False
    """True if user and assistant messages must alternate and a user message must come first, as some chat templates
    require.
    """
    schemas: str = "openai"
    """Name of the accepted subset of JSON Schema; see `STYLES`."""
    signed_call_models: str = ""
    """Regular expression of the models that reject tool calls without Google's signature; empty if there are none."""


_NO_MODEL = "(?!)"
OPENAI = CompatibleProvider(
    title="OpenAI",
    key=("OPENAI_API_KEY",),
    url=("OPENAI_BASE_URL",),
    address="https://api.openai.com/v1",
    takes_unknown_fields=False,
    decodes_arguments=False,
)
"""Properties of OpenAI."""
UNKNOWN = CompatibleProvider(title="compatible server", key=(), url=(), address="")
"""Properties of a compatible server that is not in the table."""

COMPATIBLE: Mapping[str, CompatibleProvider] = {
    "gemini": CompatibleProvider(
        title="Google Gemini",
        key=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url=("GEMINI_BASE_URL",),
        address="https://generativelanguage.googleapis.com/v1beta/openai",
        schemas="gemini",
        format_with_tools=r"gemini-([3-9]|\d\d)",
        signed_call_models=r"gemini-([3-9]|\d\d)",
    ),
    "azure": CompatibleProvider(
        title="Azure OpenAI",
        key=("AZURE_OPENAI_API_KEY",),
        url=("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
        address="",
        example="https://RESOURCE.openai.azure.com",
        path="/openai/v1",
        limit="max_completion_tokens",
        takes_unknown_fields=False,
    ),
    "bedrock": CompatibleProvider(
        title="Amazon Bedrock",
        key=("AWS_BEARER_TOKEN_BEDROCK",),
        url=("AWS_BEDROCK_BASE_URL",),
        address="https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
        limit="max_completion_tokens",
    ),
    "mistral": CompatibleProvider(
        title="Mistral",
        key=("MISTRAL_API_KEY",),
        url=("MISTRAL_BASE_URL",),
        address="https://api.mistral.ai/v1",
        has_stream_options=False,
        id_length=9,
        reasoning=_NO_MODEL,
        takes_unknown_fields=False,
        has_user_after_tool=False,
    ),
    "groq": CompatibleProvider(
        title="Groq",
        key=("GROQ_API_KEY",),
        url=("GROQ_BASE_URL",),
        address="https://api.groq.com/openai/v1",
        limit="max_completion_tokens",
        json_schema_models="gpt-oss|kimi-k2|llama-4",
        format_with_tools=_NO_MODEL,
        reasoning="reasoning",
        takes_unknown_fields=False,
    ),
    "deepseek": CompatibleProvider(
        title="DeepSeek",
        key=("DEEPSEEK_API_KEY",),
        url=("DEEPSEEK_BASE_URL",),
        address="https://api.deepseek.com/v1",
        json_schema_models=_NO_MODEL,
    ),
    "openrouter": CompatibleProvider(
        title="OpenRouter",
        key=("OPENROUTER_API_KEY",),
        url=("OPENROUTER_BASE_URL",),
        address="https://openrouter.ai/api/v1",
    ),
    "ollama": CompatibleProvider(
        title="Ollama", key=("OLLAMA_API_KEY",), url=("OLLAMA_BASE_URL",), address="http://localhost:11434/v1"
    ),
    "vllm": CompatibleProvider(
        title="vLLM",
        key=("VLLM_API_KEY",),
        url=("VLLM_BASE_URL",),
        address="http://localhost:8000/v1",
        has_user_after_tool=False,
        alternates=True,
    ),
}


def find_provider_row(host: str) -> CompatibleProvider:
    """Return the row of the provider table whose base URL has the host `host`; `UNKNOWN` if no row has this host."""
    return next((row for row in COMPATIBLE.values() if row.address.startswith(f"https://{host}/")), UNKNOWN)
