"""Recognition of provider errors that reject a request as too long for the model's context window."""

import re
from typing import TypeGuard

from actgent.errors import BadRequest

STATUS_TOO_LARGE = 413
OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "request_too_large",
        "string_above_max_length",
        "tokens_limit_reached",
    }
)
"""Error codes and types that mean a request is too long, with any HTTP status."""
_WORDINGS = (
    r"(prompt|input|query|request|conversation|messages?) (\w+ ){0,3}(is|was|are) too (long|large)\b",  # Anthropic, Bedrock
    r"(prompt|messages|input|request body)( tokens)? too (long|large)",  # Ollama, Baidu, GitHub Models
    r"(prompt|input) (contains|has) \w+ tokens,? too large",  # Mistral
    r"(prompt|input) (contains|has) too many tokens",
    r"too many tokens in (the |your )?(prompt|input|messages?)",
    r"\bprompt (token )?(length|limit).{0,40}(exceed|greater|longer|larger)",  # ExLlama, TensorRT-LLM
    r"prompt exceeds",  # Zhipu
    r"prompt tokens.{0,30}exceed",  # OpenVINO
    r"exceeds? (the |model'?s? )?(maximum|max) (input|prompt|sequence|model) (length|size)",
    r"input (text )?exceeds (the |model'?s )*maximum",
    r"total (length of|number of|tokens).{0,60}(input|prompt|tokens).{0,60}exceed",
    r"max(imum)? tokens of \d+ exceeded",  # Snowflake
    r"the max input characters",  # Baidu
    r"(prompt|输入|上下文).{0,12}(超长|过长|超过|超出)",  # Zhipu and other Chinese providers
    r"(maximum|max|model'?s?) (context|model|sequence) (length|size|window)",  # OpenAI, vLLM, DeepSeek, SGLang
    r"context[ _](window|length|size|limit)",  # OpenAI responses, llama.cpp, LM Studio, MiniMax, Anthropic
    r"input token count.{0,60}exceeds",  # Gemini
    r"input token count is \d+ but (the )?model only supports",  # Vertex
    r"maximum prompt length",  # xAI
    r"prompt token count.{0,40}exceeds",  # GitHub Copilot
    r"reduce the length of (the|your) (messages|prompt|input)",  # Groq, OpenAI
    r"request too large for",  # Groq and OpenAI: more than a minute's tokens
    r"inputs?` (tokens|must have less)",  # TGI, Together
    r"input tokens? exceed(s|ed)?\b",  # Nova, OpenAI
    r"number of input tokens.{0,40}(exceed|cannot)",  # watsonx, Nova
    r"too many input tokens",  # Nova
    r"exceed(s|ed)?( the)?( model| maximum)? token limit",  # Kimi
    r"input length.{0,60}exceed",  # Databricks, Ollama
    r"tokens? (of|in) (the|your) (prompt|input|messages?).{0,40}exceed",
    r"too many tokens: ",  # Cohere; Bedrock's "Too many tokens, please wait" is a rate limit
    r"range of input length should be",  # DashScope
)
"""Messages of providers. `tests/llm/test_context_overflow_errors.py` holds the recorded originals."""
_OVERFLOW = re.compile("|".join(_WORDINGS), re.IGNORECASE)


def says_too_long(text: str) -> bool:
    """Return True if the text of a provider's error says that the request exceeds the context window.

    Return False for texts about rate limits.
    """
    return _OVERFLOW.search(text) is not None and "please wait" not in text.casefold()


def is_too_long(error: Exception) -> TypeGuard[BadRequest]:
    """Return True if the error means that the request exceeds the model's context window."""
    if not isinstance(error, BadRequest):
        return False
    known = error.code in OVERFLOW_CODES or error.status == STATUS_TOO_LARGE
    return known or says_too_long(str(error))
