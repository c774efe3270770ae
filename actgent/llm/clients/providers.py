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
    path: str = ""
    """What is added to an address that does not end with `/v1`."""
    limit: str = "max_tokens"
    """The field of the longest answer."""
    has_stream_options: bool = True
    """False: it refuses the field, and reports usage in streams without it."""
    has_json_schema: bool = True
    """False: it is asked for any JSON object; the form stands in the prompt, and answers are checked by it anyway."""
    id_length: int = 0
    """The length of tool call ids, letters and digits, that it insists on; 0 takes those of OpenAI."""


COMPATIBLE: Mapping[str, CompatibleProvider] = {
    "gemini": CompatibleProvider(
        title="Google Gemini",
        key=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url=("GEMINI_BASE_URL",),
        address="https://generativelanguage.googleapis.com/v1beta/openai",
    ),
    "azure": CompatibleProvider(
        title="Azure OpenAI",
        key=("AZURE_OPENAI_API_KEY",),
        url=("AZURE_OPENAI_BASE_URL", "AZURE_OPENAI_ENDPOINT"),
        address="",
        path="/openai/v1",
        limit="max_completion_tokens",
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
    ),
    "groq": CompatibleProvider(
        title="Groq",
        key=("GROQ_API_KEY",),
        url=("GROQ_BASE_URL",),
        address="https://api.groq.com/openai/v1",
        limit="max_completion_tokens",
    ),
    "deepseek": CompatibleProvider(
        title="DeepSeek",
        key=("DEEPSEEK_API_KEY",),
        url=("DEEPSEEK_BASE_URL",),
        address="https://api.deepseek.com/v1",
        has_json_schema=False,
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
    ),
}
