"""What models round others have in common."""

from collections.abc import Mapping

from actgent.llm.adapters import ModelLike
from actgent.llm.base import LLM, Chat
from actgent.llm.doors import Door
from actgent.llm.models import resolve_model
from actgent.messages import Usage


class WrappingModel(LLM):
    """A model that says of itself what the one in it says, and makes a span of each attempt of that one."""

    traces_attempts = True

    def __init__(self, llm: ModelLike | str) -> None:
        """Wrap a model: an LLM, what may stand for one, or its name.

        Raises:
            ConfigurationError: a text names no model, or an object cannot be asked.
        """
        self.llm = inner = resolve_model(llm)
        self.name, self.max_tokens = inner.name, inner.max_tokens
        self.context_window, self.refuses_length = inner.context_window, inner.refuses_length
        self.dialect = inner.dialect  # type: ignore[misc] # an instance stands for its inner model

    @property
    def counts_tokens(self) -> bool:
        return self.llm.counts_tokens

    async def count_tokens(self, chat: Chat) -> int | None:
        return await self.llm.count_tokens(chat)

    def price_of(self, usage: Usage) -> float | None:
        return self.llm.price_of(usage)

    def waited(self, session: str) -> float:
        return self.llm.waited(session)

    def doors(self) -> Mapping[str, Door]:
        return self.llm.doors()

    async def aclose(self) -> None:
        await self.llm.aclose()
