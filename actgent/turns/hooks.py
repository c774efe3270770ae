"""Hooks around the turn: what is added to a query for one call, and who is shown what was said."""

from collections.abc import Iterable, Sequence

import attrs

from actgent.messages import Message
from actgent.protocols.base import PromptTemplate, View
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handler, takes_session
from actgent.sessions.turn import Turn

from .dispatcher import Dispatcher

LAST = float("inf")
_ADDED = "a function of on_query returns None, or a text"


@attrs.define(eq=False)
class Hooks:
    """The hooks of one agent. Empty lists cost the turn one look each."""

    queries: list[tuple[Handler, bool]] = attrs.field(factory=list)
    """Query pre-processors, in order of registration, and whether each takes the session."""
    staged: list[tuple[str, Handler, bool]] = attrs.field(factory=list)
    """Those of one stage of the protocol, which it names."""
    listeners: list[tuple[float, Handler, bool]] = attrs.field(factory=list)
    """Conversation data handlers, the lowest priority first."""

    def add_query(self, hook: Handler, stage: str | None = None) -> None:
        if stage is None:
            self.queries = [*self.queries, (hook, takes_session(hook))]
        else:
            self.staged = [*self.staged, (stage, hook, takes_session(hook))]

    def add_listener(self, hook: Handler, priority: float | None) -> None:
        """Without a priority it comes last; equal ones keep the order of registration."""
        entry = (LAST if priority is None else priority, hook, takes_session(hook))
        self.listeners = sorted((*self.listeners, entry), key=lambda entry: entry[0])

    def remove(self, hook: Handler) -> None:
        """Forget a hook of either kind; nothing happens if it is none."""
        self.queries = [entry for entry in self.queries if entry[0] != hook]
        self.staged = [entry for entry in self.staged if entry[1] != hook]
        self.listeners = [entry for entry in self.listeners if entry[1] != hook]

    async def context_of(self, context: SessionContext, message: Message, dispatcher: Dispatcher) -> str:
        """Collect what the pre-processors add to a query; one that fails adds nothing."""
        texts = [
            await dispatcher.consult(
                context, entry[0], message, takes_session=entry[1], wanted=_ADDED, place=f"query/{place}"
            )
            for place, entry in enumerate(self.queries)
            if entry in self.queries  # one of those before may have removed it
        ]
        return _worded(texts)

    async def gather_for(
        self, context: SessionContext, turn: Turn, view: View, dispatcher: Dispatcher
    ) -> None:
        """Add what the pre-processors of this stage gather to the call that is about to be made; one that fails adds nothing."""
        if turn.message.sender.kind != "user" or view.repairs:  # of those it is there already
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
            if entry[0] == stage and entry in self.staged  # one of those before may have removed it
        ]
        turn.answer.aside = "\n\n".join(filter(None, (turn.answer.aside, _worded(texts))))
        turn.check()

    async def tell(self, context: SessionContext, turn: Turn, dispatcher: Dispatcher) -> None:
        """Show the listeners the messages that the conversation has gained, after they are written to the journal.

        A listener that fails does not keep the next one from its call.

        Raises:
            JournalError: The messages cannot be written, so the listeners do not get them.
        """
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
                if entry in self.listeners:  # one of those before may have removed it
                    await dispatcher.consult(
                        context, entry[1], message, takes_session=entry[2], place=f"message/{place}"
                    )


def _has_own(said: Sequence[Message], reported: int) -> bool:
    """Return True if a message after the reported ones is the agent's own; those from outside are written when accepted."""
    return any(
        said[place].sender.kind in ("assistant", "tool", "agent") for place in range(reported, len(said))
    )


def _worded(texts: Iterable[object]) -> str:
    """What pre-processors returned, in words for the model."""
    said = "\n\n".join(text for text in texts if isinstance(text, str) and text.strip())
    return f"Context: {said}" if said else ""
