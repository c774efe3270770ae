"""The models of one agent: clients made from names and settings while it runs, and clients that were given."""

from collections.abc import Mapping

import attrs

from actgent.llm.adapters import ModelLike
from actgent.llm.base import LLM
from actgent.llm.models import resolve_model
from actgent.llm.settings import LLMSettings


@attrs.define(eq=False)
class AgentModels:
    """The models by role; `default` is the one that answers where a protocol asks for no other."""

    named: dict[str, ModelLike | LLMSettings | str]
    """As the program wrote them."""
    clients: dict[str, LLM] | None = None
    """None once the agent has stopped, until it starts again."""

    def __attrs_post_init__(self) -> None:
        self.open()

    def open(self) -> Mapping[str, LLM]:
        """Return the clients, made where there are none.

        Raises:
            ConfigurationError: a name leads to no model.
            MissingKey: a model needs a key, and there is none.
        """
        if self.clients is None:
            self.clients = self.resolve()
        return self.clients

    def resolve(self) -> dict[str, LLM]:
        """Return a client for each role: a new one where there is a name or settings."""
        return {
            role: model.build() if isinstance(model, LLMSettings) else resolve_model(model)
            for role, model in self.named.items()
        }

    async def aclose(self) -> None:
        """Close the clients that were made from names; those that were given stay their owner's."""
        clients, self.clients = self.clients or {}, None
        for role, client in clients.items():
            if not isinstance(self.named[role], LLM):
                await client.aclose()
