"""Any model behind a governor."""

from actgent.messages import Usage

from .base import LLM, Answer, Chat, OnText
from .governor import Governor


class Governed(LLM):
    """Any model behind a governor, one attempt a call: for models that are no `Remote`, which ask it by themselves."""

    def __init__(self, llm: LLM, governor: Governor) -> None:
        self.llm = llm
        self.governor = governor
        self.name = llm.name
        self.dialect = llm.dialect  # type: ignore[misc] # an instance stands for its inner model

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        size = _size(chat) if self.governor.counts_tokens else 0
        async with self.governor.admit(chat, model=self.name, size=size) as permit:
            answer = await self.llm.complete(chat, on_text=on_text)
            permit.report_usage(answer.usage)
            return answer

    def price_of(self, usage: Usage) -> float | None:
        return self.llm.price_of(usage)

    def waited(self, session: str) -> float:
        return self.governor.waited(session)

    async def aclose(self) -> None:
        await self.llm.aclose()

    def __repr__(self) -> str:
        return f"Governed({self.llm!r})"


def _size(chat: Chat) -> int:
    texts = (getattr(part, "text", "") for message in chat.messages for part in message.parts)
    return len(chat.system) + sum(map(len, texts))
