"""`SlidingWindow`: a memory that shows the last turns of a conversation within a token limit."""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ChatMessage, Message, Part
from actgent.support.unknown_name_hints import lists_arguments

from .context_size_estimate import CHARACTERS_PER_TOKEN
from .memory_interface import Memory
from .memory_view_serialization import pack, unpack
from .short_term_memory import ShortTermView

DEFAULT_TOKENS = 180_000
"""Token limit if only `turns` is set."""
_FORM = "sliding 2"
_GONE = -1
"""Index that represents a message that is no longer shown."""


def _check_at_least_one(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and not (type(value) is int and value >= 1):
        raise ConfigurationError(
            f"SlidingWindow({attribute.name}=...) must be a whole number of at least 1, not {value!r}"
        )


@lists_arguments
@attrs.frozen(kw_only=True)
class SlidingWindow(Memory):
    """Memory that shows at most the last `turns` turns, and at most `tokens` tokens.

    When there is one turn too many, the older half is omitted at once, so that the prompt's prefix stays the same between two cuts.
    Between half of the turns and all of them are shown. `turns` never shortens the running turn. `tokens` shortens it as
    `ShortTermMemory` does; the message that began it always stays.
    """

    turns: int | None = attrs.field(default=None, validator=_check_at_least_one)
    """Maximum number of shown turns; None shows as many as fit into `tokens`."""
    tokens: int | None = attrs.field(default=None, validator=_check_at_least_one)
    """Maximum shown tokens, estimated as in `ShortTermMemory.max_tokens`; None means 180,000."""

    def __attrs_post_init__(self) -> None:
        if self.turns is None and self.tokens is None:
            raise ConfigurationError("SlidingWindow() has no limit: pass turns=, tokens= or both")

    def open_view(self) -> "SlidingView":
        return SlidingView(self._budget, self._budget, turns=self.turns)

    def restore_view(self, saved: bytes) -> "SlidingView | None":
        if type(self) is not SlidingWindow:  # views of subclasses may have more state
            return None
        form, *fields = unpack(saved)
        if form != _FORM:
            return None
        turns, begun, (_, budget, *shown) = fields
        if (turns, budget) != (self.turns, self._budget):
            return None
        view = SlidingView.restored(budget, shown)
        view.restore_turn_starts(turns, begun)
        return view

    @property
    def _budget(self) -> int:
        return (self.tokens or DEFAULT_TOKENS) * CHARACTERS_PER_TOKEN


@attrs.define(eq=False)
class SlidingView(ShortTermView):
    """Messages of one session that the model gets: its last turns."""

    _turns: int | None = attrs.field(default=None, kw_only=True)
    _turn_starts: list[ChatMessage] = attrs.field(factory=list, kw_only=True)
    """First message of each shown turn. Some of these messages may have been omitted since."""

    def add(self, message: Message, *, answered: bool = False) -> None:
        begins = self._turns is not None and answered and message.correlation_id is None
        super().add(message, answered=answered)
        if begins and self._chat:
            self._turn_starts.append(self._chat[-1])
            if len(self._turn_starts) > self._turns:  # type: ignore[operator]
                self._slide()

    def save(self) -> bytes | None:
        if type(self) is not SlidingView:
            return None
        places = self._turn_start_indexes()
        begun = [places.get(id(message), _GONE) for message in self._turn_starts]
        return pack((_FORM, self._turns, begun, self._state_to_save()))

    def restore_turn_starts(self, turns: int | None, places: Sequence[int]) -> None:
        """Restore the beginnings of the turns: `places` has the index of each turn's first message in the shown messages.

        `turns` is the maximum number of turns to show; None shows as many as fit.
        """
        gone = ChatMessage("user", ())
        self._turns = turns
        self._turn_starts = [gone if place == _GONE else self._chat[place] for place in places]

    def _mark_answered(self, parts: tuple[Part, ...]) -> None:
        begins = bool(self._turn_starts) and self._turn_starts[-1] is self._chat[-1]
        super()._mark_answered(parts)
        if begins:
            self._turn_starts[-1] = self._chat[-1]

    def _slide(self) -> None:
        """Omit the older half of the shown turns.

        Cutting many at once keeps the beginning of requests equal for longer.
        """
        kept = (self._turns or 0) // 2 + 1
        self._turn_starts = self._turn_starts[-kept:]
        places = self._turn_start_indexes()
        if places and (first := min(places.values())):
            while not self._begins_round(first):
                first -= 1
            self._cut(first)

    def _turn_start_indexes(self) -> dict[int, int]:
        """Return the index in the shown messages of each turn's first message, by the `id()` of that message."""
        begun = set(map(id, self._turn_starts))
        return {id(message): place for place, message in enumerate(self._chat) if id(message) in begun}
