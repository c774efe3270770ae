"""Fitting of model requests into the model's context window: drop old messages, then shorten long tool results."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from actgent.errors import BadRequest, ContextOverflow
from actgent.errors.text_escaping import counted
from actgent.journal.record_types import Fitting
from actgent.llm import context_window as window
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse
from actgent.memory.context_size_estimate import largest_parts
from actgent.memory.memory_interface import ModelView
from actgent.messages import ChatMessage, Part, ToolCall, ToolResult
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import logger_of
from actgent.support.token_estimate import estimate_tokens
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.oversized_results import ReadResult, store_oversized
from actgent.tools.outputs.result_text import truncate

TARGET_SHARE = 0.52
"""Target size of a shortened request, as a share of the context window. At 0.52, requests use 0.5 of the window in the median.

With this share, 97 % of the measured requests use 0.45 to 0.55. The messages that remain may have more or fewer tokens per character
than the whole request, and only the next token count of the provider shows the difference.
"""
MAX_SHARE = 0.9
"""Maximum share of the conversation's tokens that a shortened request keeps."""
RESULT_LENGTHS_CHARS = (10_000, 1_000)
"""Lengths in characters to which tool results are truncated; they are tried in order until the request fits."""

_ADVICE = (
    "the largest parts are: {}. Send less, let tools return less (Limits(result_characters=...)), ask for a shorter answer "
    "(max_tokens=), or take a model with a larger window; if context_window= is set, check its value"
)
_log = logger_of(__name__)

Assemble = Callable[[], Sequence[ChatMessage]]
"""Function that builds the messages of a request again after the memory view of the conversation was shortened."""


@attrs.define(eq=False, repr=False)
class ContextFitter(FieldRepr):
    """Shortens model requests to the context window of the model. It caches the last reported token count of each conversation."""

    _counted: "weakref.WeakKeyDictionary[SessionConversation, window.CountedRequest]" = attrs.field(
        factory=weakref.WeakKeyDictionary
    )

    def note(self, context: SessionContext, llm: LLM, chat: ModelRequest, answer: ModelResponse) -> None:
        """Store the prompt tokens that the provider reported for a request, to estimate the size of later requests of the session.

        Do nothing for models without a known context window.
        """
        if llm.context_window is None:
            return
        if counted := window.count_answered(llm, chat, answer, self._counted.get(context.conversation)):
            self._counted[context.conversation] = counted

    async def fit(self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble) -> ModelRequest:
        """Return the request, shortened if it exceeds the model's context window.

        Old messages are dropped first, then long tool results are truncated. If the estimated size is too uncertain, the provider
        counts the tokens, if it offers that. `assemble` returns the messages again after the memory view was shortened.

        Raises:
            ContextOverflow: The request does not fit, even when shortened.
        """
        context = turn.session
        if llm.context_window is None:
            return chat
        turn.fitting = None
        before = self._counted.get(context.conversation) or self._restore_count(context, llm, chat)
        room = llm.context_window - window.reserved_answer_tokens(llm, chat, llm.context_window)
        if window.upper_bound(llm, chat, before) <= room:  # the usual case
            return chat
        if llm.counts_tokens and window.lower_bound(llm, chat, before) <= room:
            counted = await self._count(turn, llm, chat)
            if counted is not None and counted <= room:
                return chat
        return self._shorten(turn, llm, chat, assemble, room=room)

    def _restore_count(
        self, context: SessionContext, llm: LLM, chat: ModelRequest
    ) -> window.CountedRequest | None:
        """Rebuild the token count of the session's last request from the recorded answer after a restart; None if it is unknown.

        So requests are shortened in the same way as without the restart.
        """
        last_answer = context.conversation.last_answer
        if last_answer is None:
            return None
        context.conversation.last_answer = None
        answers = [index for index, each in enumerate(chat.messages) if each.role == "assistant"]
        is_shortened = last_answer.fitting is not None and last_answer.fitting.shortened
        is_other = last_answer.model and not last_answer.model.startswith(llm.name)
        if not answers or is_shortened or is_other:
            return None
        request = attrs.evolve(chat, messages=chat.messages[: answers[-1]])
        answer = ModelResponse(parts=chat.messages[answers[-1]].parts, usage=last_answer.usage)
        if counted := window.count_answered(llm, request, answer):
            self._counted[context.conversation] = counted
        return counted

    async def _count(self, turn: Turn, llm: LLM, chat: ModelRequest) -> int | None:
        """Return the token count of a request from the provider; None if the provider's call fails.

        An interruption of the turn cancels the call.

        Raises:
            Interrupted, ModelTimeout, ...: The turn was stopped.
        """
        context = turn.session
        turn.expose()
        try:
            counted = await llm.count_tokens(chat)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            _log.info("a request is estimated: %r", convert_user_error(raised, "model", llm.name))
            counted = None
        finally:
            turn.cover()
        turn.check()
        if counted is not None:
            self._counted[context.conversation] = window.count_unsent(
                llm, chat, counted, self._counted.get(context.conversation)
            )
        return counted

    def compact(self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble) -> ModelRequest | None:
        """Return a request of about half the size after the provider rejected `chat` as too long; None if it cannot be shortened.

        `assemble` returns the messages again after the memory view was shortened.
        """
        context = turn.session
        size = window.upper_bound(llm, chat, self._counted.get(context.conversation))
        try:
            return self._shorten(turn, llm, chat, assemble, room=size // 2)
        except ContextOverflow:
            return None

    def _shorten(
        self, turn: Turn, llm: LLM, chat: ModelRequest, assemble: Assemble, *, room: int
    ) -> ModelRequest:
        """Return a request of at most `room` tokens: drop old messages, then truncate long tool results.

        Raises:
            ContextOverflow: The shortened request is still larger.
        """
        context = turn.session
        size_of = partial(window.upper_bound, llm, before=self._counted.get(context.conversation))
        size, view = size_of(chat), context.conversation.current_view()
        fitting = turn.fitting or Fitting(tokens=size, room=room)
        counted = self._counted.get(context.conversation)
        rate = counted.rate if counted is not None and counted.model == llm.name else 1.0
        shorten = partial(with_short_results, turn)
        for limit in (0, *RESULT_LENGTHS_CHARS):
            if limit and size > room:
                fitting = attrs.evolve(fitting, shortened=limit)
                chat = attrs.evolve(chat, messages=shorten(chat, limit))
                size = size_of(chat)
            while size > room and view.shrink(share := _share(view, chat, room * TARGET_SHARE / rate)):
                fitting = attrs.evolve(fitting, shares=(*fitting.shares, share))
                chat = attrs.evolve(chat, messages=assemble())
                if limit:
                    chat = attrs.evolve(chat, messages=shorten(chat, limit))
                size = size_of(chat)
                if not limit:  # shorten long results before removing the newest rounds
                    break
        if size > room:
            raise _overflow(llm, chat, size, room)
        turn.fitting = attrs.evolve(fitting, room=room)
        return chat


def _share(view: ModelView, chat: ModelRequest, target_tokens: float) -> float:
    """Return the fraction of the conversation's tokens to keep, so that the request has about `target_tokens` estimated tokens.

    System prompt and tools keep their size.
    """
    shown = window.conversation_tokens(view.messages())
    others = window.estimate_request(chat) - shown
    return min(max((target_tokens - others) / shown, 0.0), MAX_SHARE) if shown else 0.0


def with_short_results(turn: Turn, chat: ModelRequest, limit: int) -> list[ChatMessage]:
    """Return the messages of a request with tool results truncated to `limit` characters.

    If the model has the tool `read_result`, the whole result is stored for that tool. Otherwise the end of the result is lost.
    """
    context = turn.session
    can_read = any(tool.name == ReadResult.name for tool in chat.tools)

    def shortened(part: Part) -> Part:
        if not isinstance(part, ToolResult) or len(part.content) <= limit:
            return part
        if can_read and part.native:
            call = ToolCall(part.tool_name, {}, part.call_id)
            return attrs.evolve(
                part,
                content=store_oversized(
                    context, call, part.content, limit, session_limit=turn.limits.kept_characters
                ),
            )
        return attrs.evolve(part, content=truncate(part.content, limit))

    return [
        attrs.evolve(message, parts=tuple(map(shortened, message.parts)))
        if message.role == "tool"
        else message
        for message in chat.messages
    ]


def fitter_for(models: Iterable[LLM]) -> ContextFitter | None:
    """Return a fitter if one of the models has a context window or may reject a long request; None otherwise."""
    needs = any(model.context_window is not None or model.refuses_length for model in models)
    return ContextFitter() if needs else None


def overflow_of(llm: LLM, chat: ModelRequest, refused: BadRequest) -> ContextOverflow:
    """Return the `ContextOverflow` error for a shortened request that the provider also rejected as too long, with `refused`."""
    size, parts = int(window.estimate_request(chat)), _largest(chat)
    text = (
        "the provider finds the request too long, also after what can be left out was left out: "
        f"{refused}; {_ADVICE.format(_format_token_counts(parts))}"
    )
    return ContextOverflow(text, parts=parts, tokens=size, budget=llm.context_window or 0)


def _overflow(llm: LLM, chat: ModelRequest, size: int, room: int) -> ContextOverflow:
    """Return the `ContextOverflow` error for a shortened request that still has `size` tokens, more than `room` tokens."""
    parts = _largest(chat)
    text = (
        f"the request would take about {size:,} tokens, and of the context window of {llm.name} "
        f"({llm.context_window or 0:,} tokens) {room:,} are left for it after the reserve for the answer;  {_ADVICE.format(_format_token_counts(parts))}"
    )
    return ContextOverflow(text, parts=parts, tokens=size, budget=room)


def _largest(chat: ModelRequest) -> list[tuple[str, int]]:
    others = [
        ("the system prompt", int(estimate_tokens(chat.system))),
        (f"the descriptions of {counted(len(chat.tools), 'tool')}", int(window.tool_tokens(chat.tools))),
    ]
    return largest_parts(chat.messages, others)


def _format_token_counts(parts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{words} ({tokens:,})" for words, tokens in parts)
