"""Models of one agent by role. Clients that the agent creates are open only while it runs."""

from collections.abc import Mapping

import attrs
import trio

from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_interface import LLM
from actgent.llm.model_resolution import resolve_model
from actgent.llm.model_settings import LLMSettings
from actgent.support.field_repr import FieldRepr

CLOSE_TIMEOUT_SECONDS = 1.0
"""Maximum seconds to close the model clients when the agent stops."""


@attrs.define(eq=False, repr=False)
class AgentModels(FieldRepr):
    """Models of an agent by role. The role `default` is used unless a protocol selects another one."""

    named: dict[str, ModelLike | LLMSettings | str]
    """Model client, settings or model name of each role, as passed to `Agent`."""
    clients: dict[str, LLM] | None = None
    """Model client of each role; None while the agent is stopped."""

    def __attrs_post_init__(self) -> None:
        self.open()

    def open(self) -> Mapping[str, LLM]:
        """Return the model client of each role, such as `default`. Create the clients if the agent was stopped.

        Raises:
            ConfigurationError: A model name is unknown.
            MissingKey: A model needs an API key, and no key is set.
        """
        if self.clients is None:
            self.clients = self.resolve()
        return self.clients

    def resolve(self) -> dict[str, LLM]:
        """Return a model client for each role: a new one for a model name or settings, otherwise the passed client."""
        return {
            role: model.build() if isinstance(model, LLMSettings) else resolve_model(model)
            for role, model in self.named.items()
        }

    async def aclose(self) -> None:
        """Close the model clients that were created from names and settings. Clients passed to `Agent` stay open.

        Cancellation does not shorten the time limit of `CLOSE_TIMEOUT_SECONDS`.
        """
        clients, self.clients = self.clients or {}, None
        created = [client for role, client in clients.items() if client is not self.named[role]]
        if created:  # a cancel scope takes 10 us
            with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
                for client in created:
                    await client.aclose()
