"""How an agent and a model talk: a `Protocol` renders a request and reads the answer.

A protocol is pure and sync, holds nothing of a session, and is shared by all of them. It
says what it made of an answer in *outcomes*; the core acts on them by one table. An outcome
list without `CallTools` or `Continue` ends the turn.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from actgent.errors import AnswerError
from actgent.llm.base import Answer, ResponseFormat
from actgent.messages import Event, Message, Route, ToolCall, ToolSpec

# --- what a model may answer with ----------------------------------------------------------


@attrs.frozen
class Instruction:
    """A named, described form of answer, as a developer writes it."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] | None = None
    """A JSON Schema, or the template form `{"field": "<what stands there>"}`; None takes any content."""
    tool: str | None = None
    """The tool that runs with the validated answer, and in no other way."""


@attrs.frozen
class ClassificationType:
    """The form that an instruction takes in prompts and classifiers."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = attrs.field(factory=dict)
    tool: str | None = None


# --- what a protocol is shown and answers ---------------------------------------------------


@attrs.frozen(kw_only=True)
class Profile:
    """Who the agent is, as templates see it."""

    name: str = "agent"
    role: str = ""
    goal: str = ""
    capabilities: str = ""
    instructions: Sequence[Instruction] = ()
    types: Sequence[ClassificationType] = ()
    tools: Sequence[ToolSpec] = ()
    body: str = ""
    """Further text of the developer's, e.g. the body of brain.md."""


@attrs.frozen(kw_only=True)
class View:
    """What a protocol sees of a session: read only, at one moment of one turn."""

    message: Message
    """The message that this pass answers."""
    record: Sequence[Message]
    """Everything that happened, oldest first. When a request is rendered it ends with `message`, behind which only
    notes of the kind system may stand."""
    state: Mapping[str, Any]
    stage: str | None = None
    """The stage that `message` goes on with; None at the turn's first pass."""
    calls: int = 0
    """Model calls of this turn so far."""
    repairs: int = 0
    """Bad answers in a row so far."""
    profile: Profile


@attrs.frozen(kw_only=True)
class Request:
    """What a protocol adds to the conversation for one model call."""

    tail: str = ""
    """Said at the very end of the prompt, for this call only."""
    model: str = "default"
    """The role of the model to ask, a key of the agent's `models`."""
    response_format: ResponseFormat | None = None


PLAIN_REQUEST = Request()

# --- outcomes -------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Say:
    """An answer for the user."""

    text: str
    data: Any = None
    message_type: str | None = None


@attrs.frozen
class CallTools:
    """Run these tools side by side; their results are the turn's next message."""

    calls: Sequence[ToolCall]
    stage: str | None = None
    """The stage that the results go on with."""


@attrs.frozen
class Change:
    """Change the session's state; dispatched before everything else of the answer."""

    action: Callable[[Mapping[str, Any]], Any]


@attrs.frozen
class Continue:
    """Ask the model again, at a stage, with a note at the conversation's end."""

    stage: str | None
    note: str = ""


@attrs.frozen
class Finish:
    """End the turn, whatever else was said."""


@attrs.frozen
class Fail:
    """The answer cannot be used. A `ParseError` is asked again a bounded number of times."""

    error: AnswerError


Outcome = Say | Event | Route | CallTools | Change | Continue | Finish | Fail


class Protocol(abc.ABC):
    """A prompt template and a classifier that belong together."""

    name: ClassVar[str]
    template: ClassVar[str]
    """The system prompt, a jinja2 template over `profile`; rendered once for an agent, so it never moves."""
    max_iterations: int | None = None
    """Model calls a turn, where the protocol has a limit of its own; None takes the agent's."""

    def request(self, view: View) -> Request:
        """What this call adds to the conversation."""
        return PLAIN_REQUEST

    @abc.abstractmethod
    def read(self, answer: Answer, view: View) -> list[Outcome]:
        """What the answer means. Native calls of the answer are read by the core before this.

        Raises:
            AnswerError: the same as returning `[Fail(error)]`.
        """

    def partial(self, text: str) -> str | None:
        """The part of a growing answer that may be shown; None shows nothing yet."""
        return None
