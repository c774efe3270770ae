"""Rewriting of a session's first message with one model call (`enhance_prompt=`)."""

from collections.abc import Mapping
from typing import Any

import attrs
import trio

from actgent.errors import ModelTimeout
from actgent.llm.custom_model_errors import as_model_error
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, check_answer
from actgent.messages import NO_METADATA, NO_USAGE, ChatMessage, Content, Part, Text, Usage, message_parts
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.user_code_calls import convert_user_error

ORIGINAL_TEXT_KEY = "enhanced_from"
"""Key of the original text in the message's metadata."""
_MAX_ORIGINAL_CHARS = 8000
"""Maximum characters of the original text stored in the metadata of the rewritten message."""
REWRITER_ROLE = "enhancer"
"""Role of the model that rewrites messages. Without a model of this role, the default model rewrites them."""
INSTRUCTION = """\
You reword requests, so that an assistant can answer them best: what is wanted, what is known, and in which form the answer is to be.
Keep the language, and all names, numbers and quotations as they are. Add nothing that was not said, and answer nothing.
Reply with the request in its new words alone."""


@attrs.frozen(repr=False)
class RewrittenMessage(FieldRepr):
    """First message of a session after rewriting."""

    parts: tuple[Part, ...]
    """Parts of the message with the new text; pictures and files are those of the original."""
    metadata: Mapping[str, Any] = NO_METADATA
    """Metadata of the message with the original text; empty if the text was not changed."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the model call that rewrote the message."""


async def rewrite_message(
    models: Mapping[str, LLM], content: Content, instruction: str | None, *, owner: str, seconds: float
) -> RewrittenMessage:
    """Rewrite the text of a message with one model call, for at most `seconds`.

    Pictures and files stay unchanged, as does the text if the model returns no text. The call counts for the quota of `owner`.
    None as `instruction` uses the default instruction.

    Raises:
        ModelTimeout: The model did not answer within `seconds`.
        ModelError: The model call failed.
        ActgentError: The model's client raised another error of actgent.
    """
    parts = message_parts(content)
    words = "".join(part.text for part in parts if isinstance(part, Text))
    if not words.strip():
        return RewrittenMessage(parts)
    llm = models.get(REWRITER_ROLE) or models["default"]
    target = ChatMessage("user", (Text(words),))
    with trio.move_on_after(seconds) as limit:
        chat = ModelRequest(
            system=instruction or INSTRUCTION, messages=[target], owner=owner, deadline=limit.deadline
        )
        answer = await _answer(llm, chat)
        text = answer.text.strip()
        if answer.stop != "end" or not text or text == words:
            return RewrittenMessage(parts, usage=answer.usage)
        others = tuple(part for part in parts if not isinstance(part, Text))
        return RewrittenMessage(
            (Text(text), *others), {ORIGINAL_TEXT_KEY: words[:_MAX_ORIGINAL_CHARS]}, answer.usage
        )
    raise ModelTimeout(f"the first message was not rewritten within {seconds:g} s", model=llm.name)


async def _answer(llm: LLM, chat: ModelRequest) -> ModelResponse:
    try:
        return check_answer(await llm.complete(chat), llm)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - calls a client of the program
        error = as_model_error(convert_user_error(raised, "model", llm.name), llm.name)
    raise error
