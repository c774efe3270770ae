"""Any model, whose answers to equal requests are kept: what an owner's agent decides in one state, it decides there again."""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.llm.adapters import ModelLike
from actgent.llm.base import Answer, Chat, OnText
from actgent.llm.spans import complete_as_span
from actgent.messages import NO_USAGE

from .wrapping import WrappingModel

_IDS = frozenset(("id", "call_id", "provider_id"))
"""What is another one in each session, and means no more than which call a result belongs to."""
_OURS = re.compile(r"\b[0-9a-f]{12}-[0-9a-f]{8,}\b")
"""An id of `new_id` in a text, such as that of a call whose result stands there."""


class Cached(WrappingModel):
    """A model that is not asked again what it has answered: the same owner, prompt, conversation, tools and form.

    The key is a digest of all that the model is shown, with the ids of calls as numbers; whose session it is counts as well, so
    no owner gets what another one's agent was told. An answer from the cache takes no tokens. It is whole: an answer that was
    cut or refused is not kept. Two equal requests at the same time are both asked.
    """

    def __init__(self, llm: ModelLike | str, *, capacity: int = 1000) -> None:
        """Wrap a model.

        Args:
            llm: The model.
            capacity: How many answers are kept in memory; the one that was used least recently makes room.

        Raises:
            ConfigurationError: the capacity is not at least 1, or a text names no model.
        """
        if type(capacity) is not int or capacity < 1:
            raise ConfigurationError(f"Cached(capacity=...) is a whole number, at least 1, not {capacity!r}")
        super().__init__(llm)
        self.capacity = capacity
        self.hits = self.misses = 0
        self._answers: OrderedDict[bytes, Answer] = OrderedDict()

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        key = _key_of(chat)
        if key is not None and (known := self._answers.get(key)) is not None:
            await trio.lowlevel.checkpoint()
            self._answers[key] = known
            self._answers.move_to_end(key)
            self.hits += 1
            if on_text is not None and known.text:
                await on_text(known.text, 0)
            return known
        self.misses += 1
        answer = await complete_as_span(self.llm, chat, on_text=on_text)
        if key is not None and answer.stop in ("end", "tool_calls") and not _names_ids(answer):
            self._keep(key, answer)
        return answer

    def _keep(self, key: bytes, answer: Answer) -> None:
        self._answers[key] = attrs.evolve(answer, usage=NO_USAGE, id=None)
        self._answers.move_to_end(key)
        while len(self._answers) > self.capacity:
            self._answers.popitem(last=False)

    def clear(self) -> None:
        """Forget all answers."""
        self._answers.clear()

    async def aclose(self) -> None:
        self.clear()
        await super().aclose()

    def __repr__(self) -> str:
        return f"Cached({self.llm!r}, capacity={self.capacity})"


def _names_ids(answer: Answer) -> bool:
    """Return True for an answer that speaks of an id, which means something in its own session alone."""
    said = [answer.text, *(str(call.arguments) for call in answer.tool_calls)]
    return any(map(_OURS.search, said))


def _key_of(chat: Chat) -> bytes | None:
    """The digest of a request; None where nobody knows for whom it is."""
    whose = ["owner", chat.owner] if chat.owner else ["session", chat.session]
    if not whose[1]:
        return None
    shown = [chat.system, chat.messages, chat.tools, chat.temperature, chat.max_tokens, chat.response_format]
    ids: dict[str, int] = {}
    text = json.dumps([whose, *(_plain(each, ids) for each in shown)], sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _plain(value: Any, ids: dict[str, int]) -> Any:
    """A value as JSON has it, with ids as numbers in the order in which they come."""
    if attrs.has(type(value)):
        fields = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
        numbered = {name: _numbered(given, ids) for name, given in fields.items() if name in _IDS and given}
        rest = {name: _plain(given, ids) for name, given in fields.items() if name not in _IDS}
        return [type(value).__name__, numbered, rest]
    if isinstance(value, Mapping):
        return {str(name): _plain(given, ids) for name, given in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, ids) for each in value]
    if isinstance(value, str):
        return _OURS.sub(lambda match: f"id-{_numbered(match[0], ids)}", value)
    return value if isinstance(value, int | float | None) else repr(value)


def _numbered(given: str, ids: dict[str, int]) -> int:
    return ids.setdefault(given, len(ids))
