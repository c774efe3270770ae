"""Hooks of an agent's turns: the functions registered with `on_query` and `on_message`."""

from collections.abc import Iterable, Sequence

import attrs

from actgent.messages import Message
from actgent.protocols.protocol_interface import PromptTemplate, TurnView
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_handlers import Handler, takes_session
from actgent.support.attrs_class_repr import FieldRepr

from .outcome_dispatcher import Dispatcher

LAST = float("inf")
_ADDED = "a function of on_query returns None, or a string"


@attrs.define(eq=False, repr=False)
class Hooks(FieldRepr):
    """Functions of one agent that were registered with `on_query` and `on_message`."""

    queries: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Functions of `on_query` in registration order, each with True if it takes the session as its second argument."""
    staged: list[tuple[str, Handler, bool]] = attrs.field(factory=list)
    """Functions of `on_query(stage=)`: stage of the protocol, function, and True if the function takes the session."""
    listeners: list[tuple[float, Handler, bool]] = attrs.field(factory=list)
    """Functions of `on_message`, lowest priority value first: priority, function, and True if it takes the session."""

    def add_query(self, hook: Handler, stage: str | None = None) -> None:
        if stage is None:
            self.queries = [*self.queries, (hook, takes_session(hook))]
        else:
            self.staged = [*self.staged, (stage, hook, takes_session(hook))]

    def add_listener(self, hook: Handler, priority: float | None) -> None:
        """Register a function of `on_message`. Lower priorities run first, and a priority of None runs last."""
        entry = (LAST if priority is None else priority, hook, takes_session(hook))
        self.listeners = sorted((*self.listeners, entry), key=lambda entry: entry[0])

    def remove(self, hook: Handler) -> None:
        """Remove a hook of any kind; unknown hooks are ignored."""
        self.queries = [entry for entry in self.queries if entry[0] != hook]
        self.staged = [entry for entry in self.staged if entry[1] != hook]
        self.listeners = [entry for entry in self.listeners if entry[1] != hook]

    async def context_of(self, context: SessionContext, message: Message, dispatcher: Dispatcher) -> str:
        """Call the `on_query` functions without a stage with a message, and return their joined texts. Failed functions add nothing."""
        texts = [
            await dispatcher.consult(
                context,
                entry[0],
                message,
                takes_session=entry[1],
                required=_ADDED,
                position=f"query/{position}",
            )
            for position, entry in enumerate(self.queries)
            if entry in self.queries  # an earlier hook may have removed this one
        ]
        return _join_texts(texts)

    async def gather_for(self, turn: Turn, view: TurnView, dispatcher: Dispatcher) -> None:
        """Call the `on_query` functions of the current protocol stage, such as `synthesis`, and add their texts to the next model call.

        Failed functions add nothing. If the message is not from a user, or the next call retries an invalid answer, call no
        function.
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
                required=_ADDED,
                position=f"{stage}/{position}",
            )
            for position, entry in enumerate(self.staged)
            if entry[0] == stage and entry in self.staged  # an earlier hook may have removed this one
        ]
        turn.aside = "\n\n".join(filter(None, (turn.aside, _join_texts(texts))))
        turn.check()

    async def call_listeners(self, turn: Turn, dispatcher: Dispatcher) -> None:
        """Call the `on_message` functions with each new message of a turn, after the message is written to the journal.

        System messages are skipped. If a function fails, the next functions are still called.

        Raises:
            JournalError: The messages cannot be written; the functions are not called.
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
            for position, entry in enumerate(self.listeners):
                if entry in self.listeners:  # an earlier hook may have removed this one
                    await dispatcher.consult(
                        context, entry[1], message, takes_session=entry[2], position=f"message/{position}"
                    )


def _has_own(messages: Sequence[Message], reported: int) -> bool:
    """Return True if one of the messages after the first `reported` messages is an answer, a tool result or an agent's message.

    Only such messages may be missing in the journal.
    """
    return any(
        messages[position].sender.kind in ("assistant", "tool", "agent")
        for position in range(reported, len(messages))
    )


def _join_texts(texts: Iterable[object]) -> str:
    """Join the texts that `on_query` functions returned into one text for the model; empty if there are none."""
    joined = "\n\n".join(text for text in texts if isinstance(text, str) and text.strip())
    return f"Context: {joined}" if joined else ""
