"""Which kind of failure an exception is."""

import functools

from actgent.errors import (
    BrokenAnswer,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    EmptyAnswer,
    Fenced,
    HandlerFailed,
    Interrupted,
    JournalError,
    LimitReached,
    ModelError,
    ParseError,
    PriceUnknown,
    Refusal,
    SessionClosed,
    Stopped,
    TruncatedAnswer,
)
from actgent.llm.base import LLM, Answer, StopReason

KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ParseError, "parse"),
    (ModelError, "model"),
    (LimitReached, "limit"),
    (ContextOverflow, "context"),
    (PriceUnknown, "limit"),
    (HandlerFailed, "handler"),
    (Refusal, "refusal"),
    (ContentFiltered, "filter"),
    (TruncatedAnswer, "length"),
    (EmptyAnswer, "empty"),
    (Interrupted, "interrupted"),
    (DeadlineExceeded, "deadline"),
    (Stopped, "stopped"),
    (SessionClosed, "stopped"),
    (JournalError, "journal"),
    (Fenced, "journal"),
)
"""Everything else is what the turn was doing: `model`, or `internal` for a mistake in actgent or in a user's protocol."""


_WHOLE: tuple[StopReason, ...] = ("end", "tool_calls", "pause")


def kind_of(error: Exception, otherwise: str = "internal") -> str:
    """The `Failure.kind` of an exception."""
    return _kind_of_class(type(error)) or otherwise  # type: ignore[arg-type]  # classes are hashable


@functools.lru_cache(maxsize=256)
def _kind_of_class(cls: type[Exception]) -> str | None:
    return next((kind for known, kind in KINDS if issubclass(cls, known)), None)


def check_stop(answer: Answer) -> None:
    """Refuse an answer that did not come to its end.

    Raises:
        AnswerError: refused, filtered, or cut at the token limit.
    """
    if answer.stop in _WHOLE:
        return
    match answer.stop:
        case "refusal":
            raise Refusal(f"the model declined to answer: {answer.text[:200]}".rstrip(": "), answer.text)
        case "filter":
            raise ContentFiltered("the provider's content filter removed the answer", answer.text)
        case "length":
            raise TruncatedAnswer(
                "the answer was cut at the token limit: raise max_tokens, or ask for less", answer.text
            )


def check_answer(answer: object, llm: LLM) -> Answer:
    """Name the model client that returns something else, before it fails elsewhere.

    Raises:
        BrokenAnswer: it does.
    """
    if isinstance(answer, Answer):
        return answer
    raise BrokenAnswer(
        f"{type(llm).__name__}.complete() returned {type(answer).__name__}, and has to return an Answer",
        model=llm.name,
    )
