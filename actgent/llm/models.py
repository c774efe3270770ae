"""From the text `provider:model` to a client."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from actgent.errors import ConfigurationError, nearest

from .adapters import ModelLike, adapted
from .base import LLM
from .clients import COMPATIBLE

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
"""What may stand before the colon without any more being said; see `known_providers`."""
_registered: dict[str, Callable[..., Any]] = {}
"""Those of `register_provider`, for the whole process."""
_PROVIDER = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_RESERVED = ("ft",)
"""What stands before the colon in the names of models themselves."""


def register_provider(name: str, factory: Callable[..., Any], *, replace: bool = False) -> None:
    """Let `name:MODEL` name a model wherever one is named: agents, settings, folders, environment, command line.

    For the whole process. The factory, which may be a class of clients, is called with MODEL and those settings that are
    there and that it takes, such as `base_url`, `api_key` and `temperature`, and returns the client.

    Args:
        name: Lower-case letters, digits, `_`, `.` and `-`.
        factory: Called once for each agent and role that names such a model.
        replace: True: takes the place of another factory of this name.

    Raises:
        ConfigurationError: the name is no such name, or is taken, or the factory cannot be called.
    """
    if not _PROVIDER.fullmatch(str(name)) or name in _RESERVED:
        raise ConfigurationError(
            f"the provider {name!r} needs a name of lower-case letters, digits, _, . and -, and not {_RESERVED[0]}"
        )
    if not callable(factory):
        raise ConfigurationError(
            f"the provider {name!r} needs a factory (model, **options) -> LLM, not {factory!r:.100}"
        )
    if name in _CLIENTS:
        raise ConfigurationError(f"the provider {name!r} is built in: register yours under another name")
    if not replace and _registered.get(name, factory) is not factory:
        raise ConfigurationError(
            f"the provider {name!r} is registered already: say replace=True, or take another name"
        )
    _registered[name] = factory


def known_providers() -> tuple[str, ...]:
    """What may stand before the colon, those of `register_provider` last."""
    return (*PROVIDERS, *_registered)


def resolve_model(model: str | ModelLike, **options: Any) -> LLM:
    """The client that `model` names, with its options (`base_url`, `api_key` ...); an LLM is returned as it is.

    What does the work of an LLM without being one is wrapped; see `adapters`.

    Raises:
        ConfigurationError: the text is not `provider:model` of a known provider.
        MissingKey: the provider needs a key, and there is none.
    """
    if isinstance(model, LLM):
        return model
    if not isinstance(model, str):
        if (made := adapted(model)) is None:
            raise ConfigurationError(f"llm= takes an LLM object or a text, not {_named(model)}; {_allowed()}")
        return made
    provider, _, name = split_model(model)
    known = known_providers()
    if provider not in known or not name:
        raise ConfigurationError(f"{model!r} is an unknown model: {_hint(model, known)}{_allowed()}")
    if provider in _registered:
        return _made_by(_registered[provider], model, name, options)
    return _CLIENTS[provider](name, **options)


def _made_by(factory: Callable[..., Any], model: str, name: str, options: Mapping[str, Any]) -> LLM:
    """The client that a registered factory makes, given what it takes; keys and addresses may be its own business."""
    given = {key: value for key, value in options.items() if value is not None}
    taken = inspect.signature(factory).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in taken):
        names = {each.name for each in taken}
        if left := sorted(given.keys() - names - {"api_key", "base_url", "http_client"}):
            raise ConfigurationError(f"{model!r}: the factory of its provider does not take {left[0]}=")
        given = {key: value for key, value in given.items() if key in names}
    made = factory(name, **given)
    if isinstance(made, str):
        raise ConfigurationError(
            f"{model!r}: the factory of its provider returned a text, and a client is needed"
        )
    return resolve_model(made)


def _named(model: object) -> str:
    if isinstance(model, type):
        return f"the class {model.__name__}: write {model.__name__}(...)"
    return "None" if model is None else f"{model!r:.100}"


_MAKERS = {
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
"""Providers by the first word of what other programs call them or their models."""


def _hint(model: str, known: Sequence[str]) -> str:
    """Return the model that a wrong text is likely to mean, as a question; empty if that is not clear."""
    if model.lower().startswith(("http://", "https://")):
        return f"an address is base_url=, as in OpenAI(MODEL, base_url={model!r}). "
    before, separator, name = model.partition(":")
    if not separator:  # `provider/model`, as LiteLLM has it, or the model alone
        before, separator, name = model.partition("/")
    before, name = before.strip(), name.strip()
    if not separator:
        provider = _MAKERS.get(model.partition("-")[0].casefold())
        return f"did you mean {provider + ':' + model!r}? " if provider else ""
    meant = next((each for each in known if each == before.casefold()), None)
    meant = meant or _MAKERS.get(re.split("[-_ ]", before.casefold())[0])
    if meant is not None:
        return f"did you mean {meant + ':' + (name or 'MODEL')!r}? "
    close = nearest(before, known)
    return f"{close} " if close.endswith("?") else ""


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


def _allowed() -> str:
    known = ", ".join(f"{provider}:MODEL" for provider in known_providers())
    return f"the text is one of {known}, e.g. 'openai:gpt-5.2'"
