"""Any model behind a governor."""

from collections.abc import Mapping

from actgent.llm.adapters import ModelLike
from actgent.llm.base import Answer, Chat, OnText
from actgent.llm.doors import Door
from actgent.llm.governor import Governor
from actgent.llm.spans import complete_as_span

from .wrapping import WrappingModel


class Governed(WrappingModel):
    """Any model behind a governor, one attempt a call: for models that are no `Remote`, which ask it by themselves."""

    def __init__(self, llm: ModelLike | str, governor: Governor) -> None:
        """Put a governor before a model: an LLM, or what may stand for one."""
        super().__init__(llm)
        self.governor = governor

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        size = _size(chat) if self.governor.counts_tokens else 0
        async with self.governor.admit(chat, model=self.name, size=size) as permit:
            if chat.watch is not None:
                chat.watch.begin(self.name, 0)
            answer = await complete_as_span(self.llm, chat, on_text=on_text)
            permit.report_usage(answer.usage)
            return answer

    def waited(self, session: str) -> float:
        return self.governor.waited(session)

    def doors(self) -> Mapping[str, Door]:
        return {self.name or repr(self.llm): self.governor, **self.llm.doors()}

    def __repr__(self) -> str:
        return f"Governed({self.llm!r})"


def _size(chat: Chat) -> int:
    texts = (getattr(part, "text", "") for message in chat.messages for part in message.parts)
    return len(chat.system) + sum(map(len, texts))
