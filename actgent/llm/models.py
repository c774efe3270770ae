"""From the text `provider:model` to a client."""

from collections.abc import Callable
from functools import partial
from typing import Any

from actgent.errors import ConfigurationError, nearest

from .base import LLM
from .clients.providers import COMPATIBLE

# Imported when a model is named: httpx2 and the SDKs behind these clients take about a second.


def _openai(model: str, **options: Any) -> LLM:
    from .clients.openai import OpenAI  # noqa: PLC0415

    return OpenAI(model, **options)


def _openai_responses(model: str, **options: Any) -> LLM:
    from .clients.openai_responses import OpenAIResponses  # noqa: PLC0415

    return OpenAIResponses(model, **options)


def _anthropic(model: str, **options: Any) -> LLM:
    from .clients.anthropic import Anthropic  # noqa: PLC0415

    return Anthropic(model, **options)


def _compatible(provider: str, model: str, **options: Any) -> LLM:
    from .clients.compatible import client_class  # noqa: PLC0415

    return client_class(provider)(model, **options)


_CLIENTS: dict[str, Callable[..., LLM]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    **{provider: partial(_compatible, provider) for provider in COMPATIBLE},
}
PROVIDERS = tuple(_CLIENTS)
"""What may stand before the colon."""


def resolve_model(model: str | LLM, **options: Any) -> LLM:
    """The client that `model` names, with its options (`base_url`, `api_key` ...); an LLM is returned as it is.

    Raises:
        ConfigurationError: the text is not `provider:model` of a known provider.
        MissingKey: the provider needs a key, and there is none.
    """
    if isinstance(model, LLM):
        return model
    if not isinstance(model, str):
        raise ConfigurationError(f"llm= takes an LLM object or a text, not {_named(model)}; {_ALLOWED}")
    provider, colon, name = split_model(model)
    if provider not in _CLIENTS or not name:
        meant = nearest(provider, PROVIDERS) if colon and provider not in _CLIENTS else ""
        hint = f"{meant} " if meant.endswith("?") else "" if meant else _maker(model)
        raise ConfigurationError(f"{model!r} is an unknown model: {hint}{_ALLOWED}")
    return _CLIENTS[provider](name, **options)


def _named(model: object) -> str:
    if isinstance(model, type):
        return f"the class {model.__name__}: write {model.__name__}(...)"
    return "None" if model is None else f"{model!r:.100}"


def _maker(model: str) -> str:
    """Guess at a model's name alone whose it is."""
    known = {
        "gpt": "openai",
        "chatgpt": "openai",
        "o1": "openai",
        "o3": "openai",
        "o4": "openai",
        "claude": "anthropic",
        "gemini": "gemini",
        "deepseek": "deepseek",
        "mistral": "mistral",
    }
    provider = known.get(model.partition("-")[0].casefold())
    return f"did you mean {provider + ':' + model!r}? " if provider else ""


def dialect_of(provider: str) -> str:
    """The API that a provider speaks: `openai`, `openai-responses` or `anthropic`."""
    return "openai" if provider in COMPATIBLE else provider


def key_variables(provider: str) -> tuple[str, ...]:
    """The variables in which the key of a provider may stand."""
    row = COMPATIBLE.get(provider)
    return row.key if row else (f"{provider.partition('-')[0].upper()}_API_KEY",)


def url_variables(provider: str) -> tuple[str, ...]:
    """The variables in which the address of a provider may stand."""
    row = COMPATIBLE.get(provider)
    return row.url if row else (f"{provider.partition('-')[0].upper()}_BASE_URL",)


def split_model(model: str) -> tuple[str, str, str]:
    """The provider of `provider:model`, the colon where there is one, and the model, whose own name may have more."""
    provider, colon, name = model.partition(":")
    return provider.strip(), colon, name.strip()


_ALLOWED = (
    f"the text is one of {', '.join(f'{provider}:MODEL' for provider in _CLIENTS)}, e.g. 'openai:gpt-5.2'"
)
