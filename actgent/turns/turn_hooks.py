"""Hooks of an agent's turns: query pre-processors and conversation listeners."""

from collections.abc import Iterable, Sequence

import attrs

from actgent.messages import Message
from actgent.protocols.protocol_interface import PromptTemplate, TurnView
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_handlers import Handler, takes_session
from actgent.support.field_repr import FieldRepr

from .outcome_dispatcher import Dispatcher

LAST = float("inf")
_ADDED = "a function of on_query returns None, or a string"


@attrs.define(eq=False, repr=False)
class Hooks(FieldRepr):
    """Query pre-processors and conversation listeners of one agent."""

    queries: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Query pre-processors in registration order; the flag is True if the hook takes the session as an argument."""
    staged: list[tuple[str, Handler, bool]] = attrs.field(factory=list)
    """Query pre-processors that run in one protocol stage only: stage name, hook, and True if the hook takes the session."""
    listeners: list[tuple[float, Handler, bool]] = attrs.field(factory=list)
    """Conversation listeners, lowest priority value first: priority, hook, and True if the hook takes the session."""

    def add_query(self, hook: Handler, stage: str | None = None) -> None:
        if stage is None:
            self.queries = [*self.queries, (hook, takes_session(hook))]
        else:
            self.staged = [*self.staged, (stage, hook, takes_session(hook))]

    def add_listener(self, hook: Handler, priority: float | None) -> None:
        """Register a conversation listener. None as priority places it last; equal priorities keep the registration order."""
        entry = (LAST if priority is None else priority, hook, takes_session(hook))
        self.listeners = sorted((*self.listeners, entry), key=lambda entry: entry[0])

    def remove(self, hook: Handler) -> None:
        """Remove a hook of any kind; unknown hooks are ignored."""
        self.queries = [entry for entry in self.queries if entry[0] != hook]
        self.staged = [entry for entry in self.staged if entry[1] != hook]
        self.listeners = [entry for entry in self.listeners if entry[1] != hook]

    async def context_of(self, context: SessionContext, message: Message, dispatcher: Dispatcher) -> str:
        """Run the query pre-processors on a message. Return their texts, joined; failed hooks add nothing."""
        texts = [
            await dispatcher.consult(
                context, entry[0], message, takes_session=entry[1], wanted=_ADDED, place=f"query/{place}"
            )
            for place, entry in enumerate(self.queries)
            if entry in self.queries  # an earlier hook may have removed this one
        ]
        return _join_texts(texts)

    async def gather_for(self, turn: Turn, view: TurnView, dispatcher: Dispatcher) -> None:
        """Run the query functions of the current protocol stage, such as `synthesis`, before a model call of that stage.

        Their texts are added to that call. Failed functions add nothing. Nothing runs for messages that are
        not from a user, or for retries of an invalid answer.
        """
        context = turn.session
        if turn.message.sender.kind != "user" or view.repairs:  # other passes already contain the text
            return
        template: PromptTemplate = turn.options.protocol
        stage = template.stage_name(view)
        texts = [
            await dispatcher.consult(
                context,
                entry[1],
                turn.message,
                takes_session=entry[2],
                wanted=_ADDED,
                place=f"{stage}/{place}",
            )
            for place, entry in enumerate(self.staged)
            if entry[0] == stage and entry in self.staged  # an earlier hook may have removed this one
        ]
        turn.aside = "\n\n".join(filter(None, (turn.aside, _join_texts(texts))))
        turn.check()

    async def call_listeners(self, turn: Turn, dispatcher: Dispatcher) -> None:
        """Call the conversation listeners with each new message, after the message is written to the journal.

        System messages are skipped. A failing listener does not prevent the call of the next listener.

        Raises:
            JournalError: The messages cannot be written; the listeners are not called.
        """
        context = turn.session
        if (
            self.listeners
            and context.log is not None
            and _has_own(context.conversation.messages, turn.reported)
        ):
            await context.log.flush()
        while turn.reported < len(context.conversation.messages):
            message = context.conversation.messages[turn.reported]
            turn.reported += 1
            if message.sender.kind == "system":
                continue
            for place, entry in enumerate(self.listeners):
                if entry in self.listeners:  # an earlier hook may have removed this one
                    await dispatcher.consult(
                        context, entry[1], message, takes_session=entry[2], place=f"message/{place}"
                    )


def _has_own(messages: Sequence[Message], reported: int) -> bool:
    """Return True if a message after the first `reported` messages was written by the agent; outside messages are already in the journal."""
    return any(
        messages[place].sender.kind in ("assistant", "tool", "agent")
        for place in range(reported, len(messages))
    )


def _join_texts(texts: Iterable[object]) -> str:
    """Join the texts of query pre-processors into one context text for the model; empty if there are none."""
    joined = "\n\n".join(text for text in texts if isinstance(text, str) and text.strip())
    return f"Context: {joined}" if joined else ""
