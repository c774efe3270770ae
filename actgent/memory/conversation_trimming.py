"""Trimming of a conversation to a size: shorten old tool results first, then omit the oldest rounds of calls.

The messages that the running turn answers and the last round always stay. The newest results of the running turn stay whole
as long as other parts can be cut.
"""

import operator
import re
from collections.abc import Callable, Collection, Sequence

import attrs

from actgent.errors.text_escaping import counted
from actgent.messages import ChatMessage, Part, Text, ToolCall, ToolResult
from actgent.support.attrs_class_repr import FieldRepr

MAX_TEXT_CHARACTERS = 1_000
"""Maximum length of a shown text in characters. Longer call arguments are replaced as a whole."""


def shorten_answer(answer: ChatMessage) -> ChatMessage:
    """Return an answer with long texts and call arguments shortened. All calls are kept.

    Returns the same object if nothing is long.
    """
    parts = tuple(map(_shorten_part, answer.parts))
    return answer if all(map(operator.is_, parts, answer.parts)) else ChatMessage(answer.role, parts)


def _shorten_part(part: Part) -> Part:
    if isinstance(part, Text) and len(part.text) > MAX_TEXT_CHARACTERS:
        return Text(
            f"{part.text[:MAX_TEXT_CHARACTERS]}... ({len(part.text):,} characters in all, the rest is not shown)"
        )
    if isinstance(part, ToolCall) and (size := len(str(part.arguments))) > MAX_TEXT_CHARACTERS:
        return attrs.evolve(part, arguments={"not_shown": f"{size:,} characters"})
    return part


PROTECTED_RESULTS = 5
"""Number of newest results of the running turn that are shortened last."""
MIN_KEPT_SHARE = 0.85
"""Minimum fraction of the removable messages to keep when the newest results are also shortened."""
SHORT_RESULT_CHARACTERS = 1_000
"""Length of a shortened result in characters."""
TEXT_RESULTS = "Tool results:"
"""First words of a message with the results of calls that a model wrote as text."""
_NOTICE = re.compile(r"\n\[the first \d+ of (\d+) characters([^\[\]\n]*)\]\Z")
_PLAIN_ID = re.compile(r"[\w.:/-]{1,100}", re.ASCII)
_MIN_FREED_SHARE = 0.01
"""Fraction of the conversation that trimming must free; otherwise the conversation stays unchanged."""

_MAX_UNUSED_SHARE = 0.03
"""Maximum unused fraction of the target size. If more is unused, an omitted round is restored in shortened form."""

Measure = Callable[[Sequence[Part]], float]
"""Function that returns the size of message parts, in a unit that the caller chooses."""


@attrs.frozen(repr=False)
class TrimResult(FieldRepr):
    """A trimmed conversation."""

    chat: list[ChatMessage]
    """The kept messages, oldest first."""
    left_out: int
    """Number of messages omitted at the start. The caller shows the pinned ones among them before `chat`."""
    replaced: dict[int, ChatMessage]
    """Shortened messages, by the identity of the message that each replaces."""


def is_round_start(chat: Sequence[ChatMessage], index: int) -> bool:
    """Return True if a round begins at the message `index`. A request may begin with a round and omit all messages before it.

    A round is a message, or an answer with the results of its calls.
    """
    message = chat[index]
    if not index:
        return True
    if message.role == "tool" or any(isinstance(part, ToolCall) for part in chat[index - 1].parts):
        return False
    return not _has_text_results(message)


def deep_trim_size(
    shown: Sequence[ChatMessage], share: float, measure: Measure, *, pinned: Collection[int]
) -> float:
    """Return the target size of a trim that also shortens the newest tool results, in units of `measure`.

    The size is the fraction `share` of the shown messages, but at least the size of the pinned messages plus
    `MIN_KEPT_SHARE` of the other messages. `pinned` has the `id()` of messages that must stay.
    """
    sizes = {id(message): measure(message.parts) for message in shown}
    size, fixed = sum(sizes.values()), sum(sizes[each] for each in pinned if each in sizes)
    return max(size * share, fixed + (size - fixed) * MIN_KEPT_SHARE)


def trim_conversation(
    chat: Sequence[ChatMessage],
    target: float,
    measure: Measure,
    *,
    pinned: Collection[int],
    task: Collection[int],
    is_deep: bool = False,
    is_last_fixed: bool = True,
) -> TrimResult | None:
    """Trim a conversation to about the size `target`, in units of `measure`. Return None if this would free too little.

    `pinned` holds the `id()` of messages that must stay; `task` holds those that began the running turn. The newest
    `PROTECTED_RESULTS` results of the running turn and their calls stay whole. With `is_deep` they are shortened and finally
    omitted, oldest first. `is_last_fixed` keeps the results of the last round whole.
    """
    if not chat:
        return None
    trimmer = _Trimmer(chat, target, measure, pinned, task)
    before = trimmer.total
    trimmer.shorten_old_results()
    trimmer.omit_old_rounds()
    trimmer.shorten_new_answers()
    if is_deep:
        trimmer.trim_new_results(is_last_fixed=is_last_fixed)
    trimmer.restore_omitted()
    frees_enough = before - trimmer.total >= before * _MIN_FREED_SHARE or trimmer.total <= target < before
    return trimmer.result() if frees_enough else None


class _Trimmer:
    """Conversation that is being trimmed."""

    def __init__(
        self,
        chat: Sequence[ChatMessage],
        target: float,
        measure: Measure,
        pinned: Collection[int],
        task: Collection[int],
    ) -> None:
        self._whole, self._now = chat, [*chat]
        self._target, self._measure, self._pinned = target, measure, pinned
        self._sizes = [measure(message.parts) for message in chat]
        self.total = sum(self._sizes)
        """Size of the kept messages."""
        starts = [index for index in range(len(chat)) if is_round_start(chat, index)]
        self._rounds = list(zip(starts, [*starts[1:], len(chat)], strict=True))
        self._last = starts[-1]
        begun = max((index for index, message in enumerate(chat) if id(message) in task), default=-1)
        self._results = [index for index in range(len(chat)) if _has_results(chat[index])]
        self._protected_from = self._first_protected_round(begun)
        """Index of the first round with one of the newest results of the running turn."""
        self._first = 0
        """Index of the first kept message, pinned messages excluded."""

    def shorten_old_results(self) -> None:
        """Shorten all tool results except the newest results."""
        for index in self._results:
            if index < self._protected_from:
                self._replace(index, shorten_message(self._now[index], SHORT_RESULT_CHARACTERS))

    def omit_old_rounds(self) -> None:
        """Omit the oldest rounds of messages until the conversation fits. Rounds with the newest results stay."""
        self._omit_rounds(self._protected_from)

    def shorten_new_answers(self) -> None:
        """Shorten the model's texts and arguments in the newest rounds, longest first, until the conversation fits.

        A single call argument, such as the text of a file, can be larger than all results.
        """
        indexes = [
            index for index in range(self._protected_from, len(self._now)) if index not in self._results
        ]
        for index in sorted(indexes, key=lambda each: self._sizes[each], reverse=True):
            if self._fits:
                break
            self._replace(index, shorten_unsigned_answer(self._now[index]))

    def trim_new_results(self, *, is_last_fixed: bool) -> None:
        """Shorten the newest tool results, oldest first, then omit all rounds but the last, until the conversation fits.

        `is_last_fixed` keeps the results of the last round whole.
        """
        for index in self._results:
            if (
                index >= self._protected_from
                and not (is_last_fixed and index > self._last)
                and not self._fits
            ):
                self._replace(index, shorten_message(self._now[index], SHORT_RESULT_CHARACTERS))
        self._omit_rounds(self._last)

    def restore_omitted(self) -> None:
        """Restore shortened messages, then omitted rounds, newest first, as far as the size limit allows."""
        self._restore_shortened()
        for start, end in reversed(self._rounds):
            room = self._target - self.total
            if end > self._first:
                continue
            if room < self._target * _MAX_UNUSED_SHARE or id(self._whole[start]) in self._pinned:
                break
            restored = [shorten_unsigned_answer(each) for each in self._now[start:end]]
            if sum(self._measure(each.parts) for each in restored) > room:
                break
            self._first = start
            for index, each in enumerate(restored, start):
                self.total += self._sizes[index]
                self._replace(index, each)
        self._restore_shortened()

    def _restore_shortened(self) -> None:
        """Restore shortened messages, newest first, as far as the size limit allows."""
        for index in reversed(range(self._first, len(self._now))):
            if self._now[index] is not self._whole[index]:
                self._restore_message(index)

    def result(self) -> TrimResult:
        """Return the result of the trim: the kept messages, the number of omitted ones, and the shortened ones."""
        replaced = {
            id(whole): now for whole, now in zip(self._whole, self._now, strict=True) if whole is not now
        }
        return TrimResult(self._now[self._first :], self._first, replaced)

    @property
    def _fits(self) -> bool:
        return self.total <= self._target

    def _first_protected_round(self, begun: int) -> int:
        """Return the index of the first round that has one of the running turn's newest results, which must stay.

        If the turn has no results, return the index of the last round.
        """
        found, first = 0, self._last
        for index in reversed(self._results):
            if index <= begun or found >= PROTECTED_RESULTS:
                break
            found += len(self._whole[index].parts)
            first = min(first, index)
        return max(start for start, _ in self._rounds if start <= first)

    def _replace(self, index: int, message: ChatMessage) -> None:
        """Replace the message at an index, and update the size of the conversation."""
        if message is not self._now[index]:
            size = self._measure(message.parts)
            self.total += size - self._sizes[index]
            self._now[index], self._sizes[index] = message, size

    def _omit_rounds(self, before: int) -> None:
        """Omit the oldest rounds before an index until the conversation fits. Rounds with pinned messages stay."""
        for start, end in self._rounds:
            if self._fits or end > before:
                break
            if start >= self._first and not any(
                id(message) in self._pinned for message in self._whole[start:end]
            ):
                self.total -= sum(self._sizes[start:end])
                self._first = end

    def _restore_message(self, index: int) -> None:
        """Restore the shortened message at an index, as far as the size limit allows.

        Text of the model is restored completely or not at all.
        """
        whole, room = self._whole[index], self._target - self.total
        more = self._measure(whole.parts) - self._sizes[index]
        if more <= room:
            self._replace(index, whole)
        elif room > 0 and index in self._results:
            characters = sum(max(0, _text_length(part) - SHORT_RESULT_CHARACTERS) for part in whole.parts)
            given = int(room / more * characters) // len(whole.parts)
            self._replace(index, shorten_message(whole, SHORT_RESULT_CHARACTERS + given))


def shorten_unsigned_answer(message: ChatMessage) -> ChatMessage:
    """Return a model's answer with shortened text and arguments. An answer with thinking stays unchanged: providers sign it."""
    is_plain = message.role == "assistant" and all(
        isinstance(part, Text | ToolCall) for part in message.parts
    )
    return shorten_answer(message) if is_plain else message


def shorten_message(message: ChatMessage, limit: int) -> ChatMessage:
    """Return a message whose results have at most `limit` characters each. Return the same object if all are short."""
    parts = tuple([shorten(part, limit) for part in message.parts])
    is_same = all(one is two for one, two in zip(parts, message.parts, strict=True))
    return message if is_same else attrs.evolve(message, parts=parts)


def shorten(part: Part, limit: int) -> Part:
    """Shorten a text or tool result to about `limit` characters. A shortened result loses its pictures and files.

    Short texts and other parts stay unchanged. A notice at the end gives the full length and the result's id,
    which the tool `read_result` takes.
    """
    if isinstance(part, Text):
        text = _shorten_text(part.text, limit, "")
        return part if text is part.text else attrs.evolve(part, text=text)
    if not isinstance(part, ToolResult):
        return part
    known = f' of result "{part.call_id}"' if _PLAIN_ID.fullmatch(part.call_id) else ""
    error = None if part.error is None else _shorten_text(part.error, limit, known)
    content = _shorten_text(part.content, limit - len(error or ""), known)
    if part.media:
        content += f"\n[{counted(len(part.media), 'file is', 'files are')} not shown any more]"
    if content is part.content and error is part.error:
        return part
    return attrs.evolve(part, content=content, error=error, media=())


def _shorten_text(text: str, limit: int, id_notice: str) -> str:
    """Cut a text to about `limit` characters, including a notice of its full length at the end.

    A notice from an earlier cut is replaced. `id_notice` is the part of the notice that gives the result's id.
    """
    if len(text) <= max(limit, 0):
        return text
    body, total, rest = text, str(len(text)), id_notice
    if found := _NOTICE.search(text):
        body, (total, rest) = text[: found.start()], found.groups()
    notice = f"of {total} characters{rest}]"
    shown = min(len(body), max(0, limit - len(notice) - len(f"\n[the first {limit} ")))
    return f"{body[:shown]}\n[the first {shown} {notice}"


def _text_length(part: Part) -> int:
    if isinstance(part, ToolResult):
        return len(part.content) + len(part.error or "")
    return len(part.text) if isinstance(part, Text) else 0


def _has_results(message: ChatMessage) -> bool:
    return message.role == "tool" or _has_text_results(message)


def _has_text_results(message: ChatMessage) -> bool:
    """Return True if the message has the results of calls that a model wrote as text."""
    return isinstance(text := message.parts[0], Text) and text.text.startswith(TEXT_RESULTS)
