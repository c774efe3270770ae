"""What an answer of a model has to be, before it counts as one."""

from actgent.errors import BrokenAnswer, ContentFiltered, Refusal, TruncatedAnswer
from actgent.llm.base import LLM, Answer, StopReason

_WHOLE: tuple[StopReason, ...] = ("end", "tool_calls", "pause")


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
