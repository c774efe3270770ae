"""Resolution of `provider:model` to a model client."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from actgent.errors import ConfigurationError, did_you_mean_or_list

from .clients import COMPATIBLE
from .custom_model_adapters import ModelLike, adapt_model
from .model_interface import LLM

# Client modules are imported when a model is resolved: httpx2 and the SDKs take about a second to import.


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
    from .clients.openai_compatible import client_class  # noqa: PLC0415

    return client_class(provider)(model, **options)


_CLIENTS: dict[str, Callable[..., LLM]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    **{provider: partial(_compatible, provider) for provider in COMPATIBLE},
}
PROVIDERS = tuple(_CLIENTS)
"""Built-in provider names. `known_providers` also returns registered ones."""
_registered: dict[str, Callable[..., Any]] = {}
"""Factories of `register_provider` by provider name, for the whole process."""
_PROVIDER = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_RESERVED = ("ft",)
"""Prefixes that are part of model names, such as OpenAI's fine-tuned `ft:gpt-4o:...`."""


def register_provider(name: str, factory: Callable[..., Any], *, replace: bool = False) -> None:
    """Register a provider, so that `name:MODEL` is accepted as a model in code, settings, agent folders and on the command line.

    The registration holds for the whole process. The factory is called with MODEL and those settings that have a value and that
    are among its parameters, such as `base_url`, `api_key` and `temperature`.

    Args:
        name: Provider name of lower-case letters, digits, `_`, `.` and `-`.
        factory: Function or class that returns a model client. It is called once for each agent and role that uses the provider.
        replace: True replaces an existing registration of the name.

    Raises:
        ConfigurationError: The name is malformed, reserved, built in or already registered, or the factory is not callable.
    """
    if not _PROVIDER.fullmatch(str(name)) or name in _RESERVED:
        raise ConfigurationError(
            f"the provider name {name!r} is invalid: use lower-case letters, digits, _, . and -, and not {_RESERVED[0]}"
        )
    if not callable(factory):
        raise ConfigurationError(
            f"the factory of the provider {name!r} must be a callable (model, **options) -> LLM, not {factory!r:.100}"
        )
    if name in _CLIENTS:
        raise ConfigurationError(f"the provider {name!r} is built in: register yours under another name")
    if not replace and _registered.get(name, factory) is not factory:
        raise ConfigurationError(
            f"the provider {name!r} is registered already: pass replace=True, or use another name"
        )
    _registered[name] = factory


def known_providers() -> tuple[str, ...]:
    """Return the names of all known providers: first the built-in providers, then the providers of `register_provider`."""
    return (*PROVIDERS, *_registered)


def resolve_model(model: str | ModelLike, **options: Any) -> LLM:
    """Return the client of a model.

    An `LLM` is returned unchanged. Functions and other model objects are wrapped by `adapt_model`.

    Args:
        model: `provider:model`, an `LLM`, or an object that works like one.
        options: Settings of the client, such as `base_url` and `api_key`. Only used if `model` is a text.

    Raises:
        ConfigurationError: The text is not `provider:model` with a known provider, or the object is not a model.
        MissingKey: The provider needs an API key, and none is set.
    """
    if isinstance(model, LLM):
        return model
    if not isinstance(model, str):
        if (made := adapt_model(model)) is None:
            raise ConfigurationError(
                f"llm= must be an LLM object or a string, not {_describe(model)}; {_allowed()}"
            )
        return made
    provider, _, name = split_model(model)
    known = known_providers()
    if provider not in known or not name:
        raise ConfigurationError(f"{model!r} is an unknown model: {_hint(model, known)}{_allowed()}")
    if provider in _registered:
        return _call_factory(_registered[provider], model, name, options)
    return _CLIENTS[provider](name, **options)


def _call_factory(factory: Callable[..., Any], model: str, name: str, options: Mapping[str, Any]) -> LLM:
    """Call a registered factory with the name of a model and the options, and return its client.

    `name` is `provider:model` for errors. Key, URL and HTTP client are optional parameters of a factory.
    """
    given = {key: value for key, value in options.items() if value is not None}
    taken = inspect.signature(factory).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in taken):
        names = {each.name for each in taken}
        if left := sorted(given.keys() - names - {"api_key", "base_url", "http_client"}):
            raise ConfigurationError(
                f"{model!r}: the factory of its provider has no parameter {left[0]}=: omit this setting, or add the parameter"
            )
        given = {key: value for key, value in given.items() if key in names}
    made = factory(name, **given)
    if isinstance(made, str):
        raise ConfigurationError(f"{model!r}: the factory of its provider must return a client, not a string")
    return resolve_model(made)


def _describe(model: object) -> str:
    if isinstance(model, type):
        return f"the class {model.__name__}: write {model.__name__}(...)"
    return "None" if model is None else f"{model!r:.100}"


_PROVIDERS_BY_PREFIX = {
    "gpt": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude": "anthropic",
    "google": "gemini",
    "vertex": "gemini",
    "aws": "bedrock",
    **{provider: provider for provider in COMPATIBLE},
}
"""Provider by the first word of model names, and of provider names in other libraries."""


def _hint(model: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown model name, such as "did you mean 'openai:gpt-5.2'? ".

    Empty if no name is similar.
    """
    if model.lower().startswith(("http://", "https://")):
        return f"an address is base_url=, as in OpenAI(MODEL, base_url={model!r}). "
    before, separator, name = model.partition(":")
    if not separator:  # `provider/model`, as LiteLLM has it, or the model alone
        before, separator, name = model.partition("/")
    before, name = before.strip(), name.strip()
    if not separator:
        provider = _PROVIDERS_BY_PREFIX.get(model.partition("-")[0].casefold())
        return f"did you mean {provider + ':' + model!r}? " if provider else ""
    meant = next((each for each in known if each == before.casefold()), None)
    meant = meant or _PROVIDERS_BY_PREFIX.get(re.split("[-_ ]", before.casefold())[0])
    if meant is not None:
        return f"did you mean {meant + ':' + (name or 'MODEL')!r}? "
    close = did_you_mean_or_list(before, known)
    return f"{close} " if close.endswith("?") else ""


def dialect_of(provider: str) -> str:
    """Return the wire format of a provider: `openai`, `openai-responses` or `anthropic`."""
    return "openai" if provider in COMPATIBLE else provider


def key_variables(provider: str) -> tuple[str, ...]:
    """Return the environment variables that may hold the API key of a provider, in the order in which they are read."""
    row = COMPATIBLE.get(provider)
    return row.key if row else (f"{provider.partition('-')[0].upper()}_API_KEY",)


def url_variables(provider: str) -> tuple[str, ...]:
    """Return the environment variables that may hold the base URL of a provider, in the order in which they are read."""
    row = COMPATIBLE.get(provider)
    return row.url if row else (f"{provider.partition('-')[0].upper()}_BASE_URL",)


def split_model(model: str) -> tuple[str, str, str]:
    """Split `provider:model` at its first colon into provider, colon and model.

    Without a colon, the colon and the model are empty.
    """
    provider, colon, name = model.partition(":")
    return provider.strip(), colon, name.strip()


def _allowed() -> str:
    known = ", ".join(f"{provider}:MODEL" for provider in known_providers())
    return f"the text is one of {known}, e.g. 'openai:gpt-5.2'"
