"""Any model behind a governor."""

from collections.abc import Mapping

from actgent.llm.adapters import ModelLike
from actgent.llm.base import LLM, Answer, Chat, OnText
from actgent.llm.doors import Door
from actgent.llm.governor import Governor
from actgent.llm.models import resolve_model
from actgent.llm.spans import complete_as_span
from actgent.messages import Usage


class Governed(LLM):
    """Any model behind a governor, one attempt a call: for models that are no `Remote`, which ask it by themselves."""

    traces_attempts = True

    def __init__(self, llm: ModelLike | str, governor: Governor) -> None:
        """Put a governor before a model: an LLM, or what may stand for one."""
        self.llm = llm = resolve_model(llm)
        self.governor = governor
        self.name = llm.name
        self.context_window, self.refuses_length = llm.context_window, llm.refuses_length
        self.dialect = llm.dialect  # type: ignore[misc] # an instance stands for its inner model

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        size = _size(chat) if self.governor.counts_tokens else 0
        async with self.governor.admit(chat, model=self.name, size=size) as permit:
            if chat.watch is not None:
                chat.watch.begin(self.name, 0)
            answer = await complete_as_span(self.llm, chat, on_text=on_text)
            permit.report_usage(answer.usage)
            return answer

    @property
    def counts_tokens(self) -> bool:
        return self.llm.counts_tokens

    async def count_tokens(self, chat: Chat) -> int | None:
        return await self.llm.count_tokens(chat)

    def price_of(self, usage: Usage) -> float | None:
        return self.llm.price_of(usage)

    def waited(self, session: str) -> float:
        return self.governor.waited(session)

    def doors(self) -> Mapping[str, Door]:
        return {self.name or repr(self.llm): self.governor, **self.llm.doors()}

    async def aclose(self) -> None:
        await self.llm.aclose()

    def __repr__(self) -> str:
        return f"Governed({self.llm!r})"


def _size(chat: Chat) -> int:
    texts = (getattr(part, "text", "") for message in chat.messages for part in message.parts)
    return len(chat.system) + sum(map(len, texts))
