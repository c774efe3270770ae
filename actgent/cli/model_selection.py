"""Models of a command: selected with `--model` or by API keys in the environment, or a scripted server on loopback."""

import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2

from actgent.errors import ConfigurationError
from actgent.llm.model_interface import LLM
from actgent.llm.model_resolution import resolve_model
from actgent.testing.provider import Chooser, open_provider
from actgent.testing.provider_apis import PROVIDER_APIS

_BY_VARIABLE = {
    "OPENAI_API_KEY": "openai:gpt-5.2",
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5",
    "LLM_PROVIDER_URL": "openai:gpt-5.2",
}
"""Default model for each environment variable: used if the variable is set and no model is named."""
CONNECTIONS = 50
"""Maximum number of open connections to the scripted server; further requests wait for a free one."""


def default_models() -> Sequence[str]:
    """Return the default models whose API key or URL is set in the environment, without duplicates."""
    return list(dict.fromkeys(model for name, model in _BY_VARIABLE.items() if os.environ.get(name)))


@asynccontextmanager
async def open_models(
    names: Sequence[str], *, base_url: str | None = None
) -> AsyncGenerator[list[LLM], None]:
    """Yield clients of the models with these names, and close the clients when the block exits.

    Raises:
        ConfigurationError: A model name or the base URL is invalid, or an API key is missing.
    """
    async with AsyncExitStack() as stack:
        models = []
        for name in names:
            models.append(resolve_model(name, base_url=base_url))
            stack.push_async_callback(models[-1].aclose)
        yield models


@asynccontextmanager
async def open_script(
    script: Chooser, *, providers: Iterable[str] = PROVIDER_APIS, chunk: int = 20
) -> AsyncGenerator[list[LLM], None]:
    """Start a scripted provider on loopback, and yield one client for each API in `providers`.

    Args:
        script: Function that returns the answer to a model request.
        providers: Names of the APIs. Importing the SDK of each API takes about a second.
        chunk: Number of characters in one stream event.
    """
    async with (
        open_provider(script, chunk=chunk, keep=0) as provider,
        open_clients({name: provider.url_for(name) for name in providers}) as models,
    ):
        yield models


@asynccontextmanager
async def open_clients(urls: Mapping[str, str]) -> AsyncGenerator[list[LLM], None]:
    """Yield one client for each provider URL on loopback. Keys of `urls` are API names, such as `openai`."""
    # trust_env=False: loopback needs no proxy. The connection limit keeps the process below its limit of open files.
    limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx2.AsyncClient(trust_env=False, limits=limits) as client:
        yield [
            resolve_model(f"{name}:demo", base_url=url, api_key="none", http_client=client)
            for name, url in urls.items()
        ]


def live_models(name: str | None, *, hint: str, has_model_option: bool = True) -> Sequence[str]:
    """Return `[name]`, or the default models of the environment if `name` is None.

    Args:
        name: Value of `--model`.
        hint: Alternative for the user, as the last part of the error message.
        has_model_option: True if the command has an option `--model` that the error message can mention.

    Raises:
        ConfigurationError: No model is named, and no API key is set.
    """
    if name is not None:
        return [name]
    if models := default_models():
        return models
    *others, last = _BY_VARIABLE
    named = "name one with --model, " if has_model_option else ""
    raise ConfigurationError(f"no model is configured: {named}set {', '.join(others)} or {last}, or {hint}")
