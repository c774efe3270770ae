"""A sliding window: the last turns of a conversation, and as many tokens of them as fit."""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ChatMessage, Message, Part

from .base import Memory
from .room import CHARACTERS_A_TOKEN
from .saved_view import pack, unpack
from .short_term import ShortTermView

MANY_TOKENS = 180_000
"""The most that is shown where only the turns are bounded."""
_FORM = "sliding 2"
_GONE = -1
"""The place of a message that is not shown any more."""


def _at_least_one(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not (type(value) is int and value >= 1):
        raise ConfigurationError(f"SlidingWindow({attribute.name}=...) takes a number from 1, not {value!r}")


@attrs.frozen(kw_only=True)
class SlidingWindow(Memory):
    """Shows at most the last `turns` turns, and at most `tokens` of them.

    If one turn is too many, the older half is left out at once, so that the prompt's prefix stays as it is between two cuts:
    between half of the turns and all are shown. `turns` never cuts the turn that runs. `tokens` cuts as `ShortTermMemory` does:
    also within the turn that runs, whose first message always stays.
    """

    turns: int | None = attrs.field(default=None, validator=_at_least_one)
    """The most turns that are shown; None: as many as fit."""
    tokens: int | None = attrs.field(default=None, validator=_at_least_one)
    """The most tokens that are shown, estimated as in `ShortTermMemory.max_tokens`; None: 180,000."""

    def __attrs_post_init__(self) -> None:
        if self.turns is None and self.tokens is None:
            raise ConfigurationError("SlidingWindow() takes turns=, tokens= or both: how much is it to show?")

    def open_view(self) -> "SlidingView":
        return SlidingView(self._budget, self._budget, turns=self.turns)

    def restore_view(self, saved: bytes) -> "SlidingView | None":
        if type(self) is not SlidingWindow:  # its views may hold more
            return None
        form, *fields = unpack(saved)
        if form != _FORM:
            return None
        turns, begun, (_, budget, *shown) = fields
        if (turns, budget) != (self.turns, self._budget):
            return None
        view = SlidingView.restored(budget, shown)
        view.begin_at(turns, begun)
        return view

    @property
    def _budget(self) -> int:
        return (self.tokens or MANY_TOKENS) * CHARACTERS_A_TOKEN


@attrs.define(eq=False)
class SlidingView(ShortTermView):
    """The last turns of one session."""

    _turns: int | None = attrs.field(default=None, kw_only=True)
    _begun: list[ChatMessage] = attrs.field(factory=list, kw_only=True)
    """The messages that turns begin with, of those that are shown; some may be left out by now."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        begins = self._turns is not None and answered and message.correlation_id is None
        super().add(message, answered=answered)
        if begins and self._chat:
            self._begun.append(self._chat[-1])
            if len(self._begun) > self._turns:  # type: ignore[operator]
                self._slide()

    def save(self) -> bytes | None:
        if type(self) is not SlidingView:
            return None
        places = self._places()
        begun = [places.get(id(said), _GONE) for said in self._begun]
        return pack((_FORM, self._turns, begun, self._saved()))

    def begin_at(self, turns: int | None, places: Sequence[int]) -> None:
        """Take over which of the messages that are shown turns begin with."""
        gone = ChatMessage("user", ())
        self._turns = turns
        self._begun = [gone if place == _GONE else self._chat[place] for place in places]

    def _settle(self, parts: tuple[Part, ...]) -> None:
        begins = bool(self._begun) and self._begun[-1] is self._chat[-1]
        super()._settle(parts)
        if begins:
            self._begun[-1] = self._chat[-1]

    def _slide(self) -> None:
        """Leave out the older half of the turns, or what of them is still shown."""
        kept = (self._turns or 0) // 2 + 1
        self._begun = self._begun[-kept:]
        places = self._places()
        if places and (first := min(places.values())):
            while not self._begins(first):
                first -= 1
            self._cut(first)

    def _places(self) -> dict[int, int]:
        """Where the messages stand that turns begin with, by their identities."""
        begun = set(map(id, self._begun))
        return {id(said): place for place, said in enumerate(self._chat) if id(said) in begun}
