"""Providers with an OpenAI-compatible API, by name: where each is, which key opens it, and what it does differently.

`COMPATIBLE` is the one table of them; the client of all is in `compatible.py`. A provider that is not in it goes by
`OpenAI(model, base_url=...)`.
"""

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class CompatibleProvider:
    """One row of the table."""

    title: str
    key: tuple[str, ...]
    """Variables of its key, the first that is set; a server at an `http://` address is asked without one, too."""
    url: tuple[str, ...]
    """Variables of its address."""
    address: str
    """Where it is; `REGION` stands for that of AWS_REGION, and an empty one is each user's own."""
    example: str = ""
    """An address of a user's own, for errors, if `address` is empty."""
    path: str = ""
    """What is added to an address that does not end with `/v1`."""
    limit: str = "max_tokens"
    """The field of the longest answer."""
    has_stream_options: bool = True
    """False: it refuses the field, and reports usage in streams without it."""
    json_schema_models: str = ""
    """Regular expression of the models that take a JSON Schema as response format. The others are asked for any JSON
    object; the prompt says the form, and answers are checked by it anyway."""
    format_with_tools: str = ""
    """Regular expression of the models that take a response format together with tools; for the others as above."""
    id_length: int = 0
    """The length of tool call ids, letters and digits, that it insists on; 0 takes those of OpenAI."""
    reasoning: str = ".*"
    """Regular expression of the reasoning fields of its own messages that it takes back."""
    takes_unknown_fields: bool = True
    """True: fields of its messages and calls that OpenAI does not define go back to it (Gemini's signatures)."""
    decodes_arguments: bool = True
    """True: it decodes the arguments of earlier calls, so only JSON objects are sent."""
    has_user_after_tool: bool = True
    """False: it refuses a user's message directly after a tool's, so a word of the assistant goes between them."""
    alternates: bool = False
    """True: chat templates may refuse neighbours of one role, and a conversation that the assistant begins."""
    schemas: str = "openai"
    """Name of the subset of JSON Schema that it accepts; see `STYLES`."""
    unsigned_calls: str = ""
    """Regular expression of the models that refuse calls without Google's signature; empty: it knows none."""


_NO_MODEL = "(?!)"
OPENAI = CompatibleProvider(
    title="OpenAI",
    key=("OPENAI_API_KEY",),
    url=("OPENAI_BASE_URL",),
    address="https://api.openai.com/v1",
    takes_unknown_fields=False,
    decodes_arguments=False,
)
"""OpenAI itself."""
UNKNOWN = CompatibleProvider(title="compatible server", key=(), url=(), address="")
"""Any other server that speaks this API."""

COMPATIBLE: Mapping[str, CompatibleProvider] = {
    "gemini": CompatibleProvider(
        title="Google Gemini",
        key=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url=("GEMINI_BASE_URL",),
        address="https://generativelanguage.googleapis.com/v1beta/openai",
        schemas="gemini",
        format_with_tools=r"gemini-([3-9]|\d\d)",
        unsigned_calls=r"gemini-([3-9]|\d\d)",
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
        title="Ollama",
        key=("OLLAMA_API_KEY",),
        url=("OLLAMA_BASE_URL",),
        address="http://localhost:11434/v1",
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


def row_at(host: str) -> CompatibleProvider:
    """Return the row of the provider at a host, or `UNKNOWN`; servers of one's own are known by name alone."""
    return next((row for row in COMPATIBLE.values() if row.address.startswith(f"https://{host}/")), UNKNOWN)
