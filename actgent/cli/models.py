"""Which models a command talks to: one by name, those that the environment has a key for, or the script on loopback."""

import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2

from actgent.errors import ConfigurationError
from actgent.llm.base import LLM
from actgent.llm.models import resolve_model
from actgent.testing.dialects import DIALECTS
from actgent.testing.provider import Chooser, open_provider

_BY_VARIABLE = {
    "OPENAI_API_KEY": "openai:gpt-5.2",
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5",
    "LLM_PROVIDER_URL": "openai:gpt-5.2",
}
"""The model to ask where a variable is set and none is named."""
CONNECTIONS = 50
"""To the script at once; more requests wait for one."""


def default_models() -> Sequence[str]:
    """The models that the environment has a key or an address for."""
    return list(dict.fromkeys(model for name, model in _BY_VARIABLE.items() if os.environ.get(name)))


@asynccontextmanager
async def open_models(
    names: Sequence[str], *, base_url: str | None = None
) -> AsyncGenerator[list[LLM], None]:
    """The clients of the named models, closed when the block is left.

    Raises:
        ConfigurationError: one of the names or the address is wrong, or a key is missing.
    """
    async with AsyncExitStack() as stack:
        models = []
        for name in names:
            models.append(resolve_model(name, base_url=base_url))
            stack.push_async_callback(models[-1].aclose)
        yield models


@asynccontextmanager
async def open_script(
    script: Chooser, *, providers: Iterable[str] = DIALECTS, chunk: int = 20
) -> AsyncGenerator[list[LLM], None]:
    """A provider on loopback, and clients of the APIs that it speaks; the SDK of each takes a second to load."""
    async with (
        open_provider(script, chunk=chunk, keep=0) as provider,
        open_clients({name: provider.url_for(name) for name in providers}) as models,
    ):
        yield models


@asynccontextmanager
async def open_clients(urls: Mapping[str, str]) -> AsyncGenerator[list[LLM], None]:
    """Clients of addresses on loopback, by the names of their wires."""
    # Loopback is never behind a proxy, and each connection counts towards this process's open files.
    limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx2.AsyncClient(trust_env=False, limits=limits) as client:
        yield [
            resolve_model(f"{name}:demo", base_url=url, api_key="none", http_client=client)
            for name, url in urls.items()
        ]


def live_models(name: str | None, *, otherwise: str, option: bool = True) -> Sequence[str]:
    """The named model, or those of the environment; `otherwise` is what to do without any.

    `option` says that the command takes `--model`.

    Raises:
        ConfigurationError: there is neither.
    """
    if name is not None:
        return [name]
    if models := default_models():
        return models
    *others, last = _BY_VARIABLE
    named = "name one with --model, " if option else ""
    raise ConfigurationError(f"no model to ask: {named}set {', '.join(others)} or {last}, or {otherwise}")
