"""Cut a conversation to a size: shorten old tool results first, then omit the oldest rounds of calls.

The messages that the running turn answers and the last round always stay. The newest results of the running turn stay whole
as long as other parts can be cut.
"""

import re
from collections.abc import Callable, Collection, Sequence

import attrs

from actgent.errors.printable import counted
from actgent.messages import ChatMessage, Part, Text, ToolCall, ToolResult

from .shortened import shortened

KEPT_RESULTS = 5
"""Number of newest results of the running turn that are shortened last."""
DEEP_SHARE = 0.85
"""Minimum share that a cut keeps of the messages that may be cut, when it shortens the newest results."""
SHORT_CHARACTERS = 1_000
"""Length of a shortened result in characters."""
TEXT_RESULTS = "Tool results:"
"""First words of a message with the results of calls that a model wrote as text."""
_NOTICE = re.compile(r"\n\[the first \d+ of (\d+) characters([^\[\]\n]*)\]\Z")
_PLAIN_ID = re.compile(r"[\w.:/-]{1,100}", re.ASCII)
_WORTH = 0.01
"""Minimum share of the conversation that a cut must free; a smaller cut is discarded."""

_SPARE = 0.03
"""Maximum unused share of the wanted size. If more is unused, an omitted round is restored in shortened form."""

Measure = Callable[[Sequence[Part]], float]
"""Returns the size of message parts, in a unit that the caller chooses."""


@attrs.frozen
class Cut:
    """A conversation after a cut."""

    chat: list[ChatMessage]
    """The kept messages, oldest first."""
    left_out: int
    """Number of omitted messages. The caller puts the pinned ones before `chat`."""
    replaced: dict[int, ChatMessage]
    """Shortened messages, by the identity of the message that each replaces."""


def begins(chat: Sequence[ChatMessage], place: int) -> bool:
    """Return True if the message at `place` starts a round, so that all messages before it can be omitted."""
    message = chat[place]
    if not place:
        return True
    if message.role == "tool" or any(isinstance(part, ToolCall) for part in chat[place - 1].parts):
        return False
    return not _has_text_results(message)


def deep_size(
    shown: Sequence[ChatMessage], share: float, measure: Measure, *, pinned: Collection[int]
) -> float:
    """Return the size to which a cut shortens the newest results, if a cut to `share` of the messages left them whole.

    `pinned` holds the `id()` of messages that must stay. A long task therefore does not displace the newest results.
    """
    sizes = {id(said): measure(said.parts) for said in shown}
    size, fixed = sum(sizes.values()), sum(sizes[each] for each in pinned if each in sizes)
    return max(size * share, fixed + (size - fixed) * DEEP_SHARE)


def cut(
    chat: Sequence[ChatMessage],
    wanted: float,
    measure: Measure,
    *,
    pinned: Collection[int],
    task: Collection[int],
    is_deep: bool = False,
    is_last_fixed: bool = True,
) -> Cut | None:
    """Cut a conversation to about the size `wanted`, in the unit of `measure`; return None if a cut would free too little.

    `pinned` holds the `id()` of messages that must stay; `task` holds those that began the running turn. The newest
    `KEPT_RESULTS` results of the running turn and their calls stay whole. With `is_deep` they are shortened and finally
    omitted, oldest first. `is_last_fixed` keeps the results of the last round whole.
    """
    if not chat:
        return None
    cutter = _Cutter(chat, wanted, measure, pinned, task)
    before = cutter.total
    cutter.shorten_old_results()
    cutter.leave_out_old_rounds()
    cutter.shorten_new_words()
    if is_deep:
        cutter.cut_new_results(is_last_fixed=is_last_fixed)
    cutter.give_back()
    is_worth_it = before - cutter.total >= before * _WORTH or cutter.total <= wanted < before
    return cutter.made() if is_worth_it else None


class _Cutter:
    """State of one cut."""

    def __init__(
        self,
        chat: Sequence[ChatMessage],
        wanted: float,
        measure: Measure,
        pinned: Collection[int],
        task: Collection[int],
    ) -> None:
        self._whole, self._now = chat, [*chat]
        self._wanted, self._measure, self._pinned = wanted, measure, pinned
        self._sizes = [measure(said.parts) for said in chat]
        self.total = sum(self._sizes)
        """Size of the kept messages."""
        starts = [place for place in range(len(chat)) if begins(chat, place)]
        self._rounds = list(zip(starts, [*starts[1:], len(chat)], strict=True))
        self._last = starts[-1]
        begun = max((place for place, said in enumerate(chat) if id(said) in task), default=-1)
        self._results = [place for place in range(len(chat)) if _has_results(chat[place])]
        self._kept = self._find_kept(begun)
        """Index of the first round with one of the newest results of the running turn."""
        self._first = 0
        """Index of the first kept message, pinned messages excluded."""

    def shorten_old_results(self) -> None:
        """Shorten the results before the newest ones."""
        for place in self._results:
            if place < self._kept:
                self._put(place, shorten_message(self._now[place], SHORT_CHARACTERS))

    def leave_out_old_rounds(self) -> None:
        """Omit the oldest rounds before the newest results until the conversation fits."""
        self._leave_out(self._kept)

    def shorten_new_words(self) -> None:
        """Shorten the model's texts and arguments in the newest rounds, longest first, until the conversation fits.

        One command with a whole file in it may take more than all results.
        """
        places = [place for place in range(self._kept, len(self._now)) if place not in self._results]
        for place in sorted(places, key=lambda each: self._sizes[each], reverse=True):
            if self._fits:
                break
            self._put(place, shorten_words(self._now[place]))

    def cut_new_results(self, *, is_last_fixed: bool) -> None:
        """Shorten the newest results, oldest first, then omit all rounds but the last, until the conversation fits."""
        for place in self._results:
            if place >= self._kept and not (is_last_fixed and place > self._last) and not self._fits:
                self._put(place, shorten_message(self._now[place], SHORT_CHARACTERS))
        self._leave_out(self._last)

    def give_back(self) -> None:
        """Restore shortened messages as far as there is room, then omitted rounds, newest first."""
        self._lengthen_all()
        for start, end in reversed(self._rounds):
            room = self._wanted - self.total
            if end > self._first:
                continue
            if room < self._wanted * _SPARE or id(self._whole[start]) in self._pinned:
                break
            said = [shorten_words(each) for each in self._now[start:end]]
            if sum(self._measure(each.parts) for each in said) > room:
                break
            self._first = start
            for place, each in enumerate(said, start):
                self.total += self._sizes[place]
                self._put(place, each)
        self._lengthen_all()

    def _lengthen_all(self) -> None:
        """Restore shortened messages as far as there is room, newest first."""
        for place in reversed(range(self._first, len(self._now))):
            if self._now[place] is not self._whole[place]:
                self._lengthen(place)

    def made(self) -> Cut:
        """Return the result of the cut."""
        replaced = {
            id(whole): now for whole, now in zip(self._whole, self._now, strict=True) if whole is not now
        }
        return Cut(self._now[self._first :], self._first, replaced)

    @property
    def _fits(self) -> bool:
        return self.total <= self._wanted

    def _find_kept(self, begun: int) -> int:
        """Return the index of the first round with one of the newest results of the running turn, or of the last round."""
        found, first = 0, self._last
        for place in reversed(self._results):
            if place <= begun or found >= KEPT_RESULTS:
                break
            found += len(self._whole[place].parts)
            first = min(first, place)
        return max(start for start, _ in self._rounds if start <= first)

    def _put(self, place: int, said: ChatMessage) -> None:
        """Replace the message at an index."""
        if said is not self._now[place]:
            size = self._measure(said.parts)
            self.total += size - self._sizes[place]
            self._now[place], self._sizes[place] = said, size

    def _leave_out(self, before: int) -> None:
        """Omit the oldest rounds before an index until the conversation fits. Rounds with pinned messages stay."""
        for start, end in self._rounds:
            if self._fits or end > before:
                break
            if start >= self._first and not any(id(said) in self._pinned for said in self._whole[start:end]):
                self.total -= sum(self._sizes[start:end])
                self._first = end

    def _lengthen(self, place: int) -> None:
        """Restore a shortened message as far as there is room. Words of the model are restored whole or not at all."""
        whole, room = self._whole[place], self._wanted - self.total
        more = self._measure(whole.parts) - self._sizes[place]
        if more <= room:
            self._put(place, whole)
        elif room > 0 and place in self._results:
            characters = sum(max(0, _length(part) - SHORT_CHARACTERS) for part in whole.parts)
            given = int(room / more * characters) // len(whole.parts)
            self._put(place, shorten_message(whole, SHORT_CHARACTERS + given))


def shorten_words(said: ChatMessage) -> ChatMessage:
    """Return a model's answer with shortened text and arguments. An answer with thinking stays unchanged: providers sign it."""
    is_plain = said.role == "assistant" and all(isinstance(part, Text | ToolCall) for part in said.parts)
    return shortened(said) if is_plain else said


def shorten_message(said: ChatMessage, limit: int) -> ChatMessage:
    """Return a message whose results have at most `limit` characters each. Return the same object if all are short."""
    parts = tuple([shorten(part, limit) for part in said.parts])
    is_same = all(one is two for one, two in zip(parts, said.parts, strict=True))
    return said if is_same else attrs.evolve(said, parts=parts)


def shorten(part: Part, limit: int) -> Part:
    """Return a result with about `limit` characters at most, without pictures and files. A short text stays unchanged.

    A notice at the end gives the full length and the result's id, which `read_result` takes.
    """
    if isinstance(part, Text):
        text = _beginning(part.text, limit, "")
        return part if text is part.text else attrs.evolve(part, text=text)
    if not isinstance(part, ToolResult):
        return part
    known = f' of result "{part.call_id}"' if _PLAIN_ID.fullmatch(part.call_id) else ""
    error = None if part.error is None else _beginning(part.error, limit, known)
    content = _beginning(part.content, limit - len(error or ""), known)
    if part.media:
        content += f"\n[{counted(len(part.media), 'file is', 'files are')} not shown any more]"
    if content is part.content and error is part.error:
        return part
    return attrs.evolve(part, content=content, error=error, media=())


def _beginning(text: str, limit: int, known: str) -> str:
    """Return the beginning of a text with a notice of its full length. The text may have been shortened before."""
    if len(text) <= max(limit, 0):
        return text
    body, total, rest = text, str(len(text)), known
    if found := _NOTICE.search(text):
        body, (total, rest) = text[: found.start()], found.groups()
    notice = f"of {total} characters{rest}]"
    shown = min(len(body), max(0, limit - len(notice) - len(f"\n[the first {limit} ")))
    return f"{body[:shown]}\n[the first {shown} {notice}"


def _length(part: Part) -> int:
    if isinstance(part, ToolResult):
        return len(part.content) + len(part.error or "")
    return len(part.text) if isinstance(part, Text) else 0


def _has_results(message: ChatMessage) -> bool:
    return message.role == "tool" or _has_text_results(message)


def _has_text_results(message: ChatMessage) -> bool:
    """Return True if the message has the results of calls that a model wrote as text."""
    return isinstance(text := message.parts[0], Text) and text.text.startswith(TEXT_RESULTS)
