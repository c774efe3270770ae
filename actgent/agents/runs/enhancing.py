"""A first message that a model words anew before anybody answers it, by one call of its own."""

from collections.abc import Mapping
from typing import Any

import attrs
import trio

from actgent.errors import ModelTimeout
from actgent.llm.base import LLM, Answer, Chat
from actgent.llm.client_errors import as_model_error
from actgent.messages import NO_METADATA, NO_USAGE, ChatMessage, Part, Text, Usage
from actgent.sessions.incoming import Content, sayable_parts
from actgent.support.foreign import failure_of
from actgent.turns.calls.answers import check_answer

ENHANCED = "enhanced_from"
"""The name in a message's metadata that holds the words of its sender."""
_LONGEST = 8000
"""Characters of the sender's words that are kept."""
ROLE = "enhancer"
"""The role of the model that is asked, of an agent that has one of it."""
INSTRUCTION = """\
You word requests anew, so that an assistant can answer them best: what is wanted, what is known, and in which form the answer is to be.
Keep the language, and all names, numbers and quotations as they are. Add nothing that was not said, and answer nothing.
Reply with the request in its new words alone."""


@attrs.frozen
class Enhanced:
    """A first message as it is said."""

    parts: tuple[Part, ...]
    metadata: Mapping[str, Any] = NO_METADATA
    """With the words of its sender, where they were replaced."""
    usage: Usage = NO_USAGE


async def enhance(
    models: Mapping[str, LLM], content: Content, instruction: str | None, *, owner: str, seconds: float
) -> Enhanced:
    """Have a model word the text of a message anew; pictures and files stay, and so does a text that it gives no other for.

    Raises:
        ModelTimeout: it took longer than so many seconds.
        ModelError: The model failed.
        ActgentError: The model's client raised another error of actgent.
    """
    parts = sayable_parts(content)
    words = "".join(part.text for part in parts if isinstance(part, Text))
    if not words.strip():
        return Enhanced(parts)
    llm = models.get(ROLE) or models["default"]
    asked = ChatMessage("user", (Text(words),))
    with trio.move_on_after(seconds) as limit:
        chat = Chat(system=instruction or INSTRUCTION, messages=[asked], owner=owner, deadline=limit.deadline)
        answer = await _answer(llm, chat)
        said = answer.text.strip()
        if answer.stop != "end" or not said or said == words:
            return Enhanced(parts, usage=answer.usage)
        others = tuple(part for part in parts if not isinstance(part, Text))
        return Enhanced((Text(said), *others), {ENHANCED: words[:_LONGEST]}, answer.usage)
    raise ModelTimeout(f"no new words for the first message within {seconds:g} s", model=llm.name)


async def _answer(llm: LLM, chat: Chat) -> Answer:
    try:
        return check_answer(await llm.complete(chat), llm)
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
        error = as_model_error(failure_of(raised, "model", llm.name), llm.name)
    raise error
