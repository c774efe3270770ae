"""All exceptions of actgent, in one tree.

The class answers two questions: whose fault is it, and what can I do?

    ActgentError
    ├── ConfigurationError         the developer's: an argument, a file or a setting is wrong
    │   ├── MissingKey             no API key, in no argument and no variable
    │   ├── DuplicateTool          two tools of one agent have the same name
    │   ├── InvalidToolSchema      the arguments of a tool have no usable JSON Schema, see `tool_name`
    │   ├── SessionExists          a new session with the id of another one of its agent
    │   ├── PriceUnknown           a cost limit, and a model whose price nobody knows
    │   ├── InvalidFile            one place in a file of an agent's folder, see `file`, `line`, `key`
    │   └── InvalidFolder          all of them that were found, see `problems`
    ├── UsageError                 the calling code's: right objects, wrong moment
    │   ├── NotRunning             the agent's block is not open
    │   ├── OutsideTrio            called from asyncio, from no event loop, or from another thread than the agent's
    │   ├── PortalClosed           the portal was closed or broke down, or belongs to the process that forked this one
    │   ├── SessionClosed          the session was closed
    │   ├── SessionNotFound        the agent has no session of this id; another agent's may have it
    │   │   └── WrongOwner         nor has this owner: the session of this id is somebody else's
    │   ├── CursorUnknown          a session has fewer records than its reader has seen: another one, or an older copy
    │   ├── NotSerializable        a value that cannot be written down
    │   ├── InvalidState           a change of the state does not fit the type of `state=`, see `reason`
    │   ├── SessionBusy            the session works, and takes no further message meanwhile (on_busy="reject")
    │   ├── NotSuspended           an answer for a session in which nothing waits for one
    │   ├── ApprovalNotFound       an answer to what nobody asked in this session
    │   ├── ApprovalMismatch       an answer for another tool or other arguments than are asked for
    │   ├── AlreadyDecided         a second answer, see `decision`
    │   ├── AlreadyAnswered        a repeated message whose reply is not known any more
    │   ├── DeadLetterGone         a dead letter that is not in the list, or is being sent by another task
    │   ├── MessageTooLarge        one message has more bytes than the inbox takes, see `size` and `limit`
    │   ├── ModeRefused            who asked may not switch the mode, or not now
    │   ├── MemoryNotFound         this owner has no long-term memory of this id
    │   ├── MemoryReplaced         a newer memory stands in its place, see `by`
    │   └── WouldDeadlock          a handler or tool waits for its own turn
    │       └── WaitCycle          sessions or actors that wait for each other in a circle, see `path`
    ├── InboxFull                  back-pressure: try again later, or raise the bound
    ├── DeadlineExceeded           an ask got no answer in time
    ├── ActorFailed                the asked actor raised
    ├── FeedLagged                 a reader of what is written fell behind, see `lost`; the journal has it
    ├── Suspended                  the turn waits for something outside, see `ids`
    ├── BrokerLost                 no connection to a message broker, or it ended, see `place`
    ├── RemoteError                a server of agents refused a client for a reason that has no class of its own, see `kind`
    │   ├── AccessRefused          ... the token is not known, or does not allow it
    │   └── ServerUnreachable      ... there was no answer within the client's patience, see `was_sent`
    ├── Fenced                     another process owns the session by now
    │   └── SessionMoved           ... and goes on with it: say it there, see `session_id`
    ├── JournalError               the journal, or what it stands on
    │   ├── JournalFull            no space: what was about to be written is not, and can be written again later
    │   ├── JournalFailed          the disk or the database server failed
    │   │   └── JournalSlow        ... has not answered in time
    │   ├── JournalDamaged         what was written is not what is there, see `session_id` and `record`
    │   ├── JournalKeyError        a record is encrypted with a key that is not there, or another one, see `key_id`
    │   └── JournalVersion         a newer actgent wrote the journal
    ├── MemoriesFailed             what stores long-term memories failed; nothing of the call was written, or it can be repeated by its key
    ├── DatabaseFailed             the database of an agent failed, or refuses a statement; nothing of the change holds
    ├── MemoriesFull               an owner has as many long-term memories as may be, and all of them are kept
    ├── WireError                  bytes that no version up to this one wrote
    ├── ThreadsLeft                sync code still runs in threads after its grace
    ├── GuardRefused               a guard of the agent refused a message, or an answer
    ├── HandlerFailed              a session's handler raised or took too long
    ├── ForeignExit                a tool, model or handler raised what is no Exception, e.g. SystemExit
    ├── Interrupted                someone stopped the turn
    ├── Stopped                    the agent's block was left before the turn's end
    ├── TooManySchedules           a session has as many schedules as it may
    ├── LimitReached               a bound that was set on a turn or a session, see `limit`, `used`, `session_id`
    ├── ContextOverflow            a request would be longer than the memory allows, see `parts`, `tokens`, `budget`
    ├── ModelError                 the model call gave no answer; `retryable` says whether again helps
    │   ├── BadRequest             400, 404, 413, 422: the request itself
    │   │   └── UnsupportedPart    a part that this client or model cannot carry
    │   ├── NotAuthorized          401, 403: the key
    │   ├── QuotaExhausted         the account has no credit left
    │   ├── RateLimited            429: later, see `retry_after`
    │   ├── ProviderUnavailable    5xx, 529, no connection
    │   ├── ModelTimeout           no answer in time
    │   └── BrokenAnswer           the answer stopped before its end, or is not what the API promises
    ├── AnswerError                the model answered, but not with something to act on
    │   ├── ParseError             not in the form that the protocol asks for
    │   ├── EmptyAnswer            nothing in it
    │   ├── TruncatedAnswer        cut at the token limit
    │   ├── Refusal                the model or its provider declined
    │   └── ContentFiltered        the provider's filter removed it
    └── ToolError                  a tool call has no result; raise it in a tool to word the error yourself
        ├── AskPerson              a tool's own question to a person: raise it in a tool
        ├── UnusableResult         JSON cannot carry a value
        ├── OutcomeUnknown         whether a call took effect is not known: raise it in a tool that lost its connection
        ├── NoThread               a sync tool never began: no thread was free in time
        ├── ToolNotFound
        ├── ToolsetUnavailable     the toolset of the tool is not connected
        ├── AddressRefused         a tool was to connect to a host inside of the network that it runs in
        ├── RequestFailed          an API answered a tool's request with an error, or not at all
        ├── InvalidArguments
        └── ToolTimeout
"""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence

from .printable import counted, quoted, shown

_MOST_NAMED = 20
"""Names that an error lists, at most."""


class ActgentError(Exception):
    """Everything that actgent raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle what it is, since constructors that word themselves do not take words."""
        return _restored, (type(self), self.args), self.__dict__


_SHORT_WORD = 8
_SIMILARITY, _SHORT_SIMILARITY = 0.75, 0.65
"""Ratios of difflib from which a known word is suggested for an unknown one of `_SHORT_WORD` characters or more, and for a shorter one.

At 0.6 `stream=` suggested `threads=`, at 0.7 `message_history=` suggested `message_id=`. `retry` and `retries` have 0.67.
"""


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that an unknown one means: a similar one, or the only one that has it as a part (`key`, `api_key`)."""
    spelled = {each.casefold(): each for each in known}
    word = word[:100].casefold()
    cutoff = _SIMILARITY if len(word) >= _SHORT_WORD else _SHORT_SIMILARITY
    similar = difflib.get_close_matches(word, spelled, 1, cutoff)
    if not similar:
        similar = [each for each in spelled if word in each.split("_")]
    return spelled[similar[0]] if len(similar) == 1 else None


def nearest(word: str, known: Iterable[str]) -> str:
    """End an error that refuses an unknown word: name the known one that was meant, or else all of them."""
    known = tuple(known)
    return meant(word, known) or (f"choose one of {', '.join(known)}" if known else "there is none at all")


def meant(word: object, known: Iterable[str]) -> str:
    """Return `did you mean 'this'?` for a known word that is like an unknown one; empty if none is."""
    found = closest(str(word), known)
    return "" if found is None else f"did you mean {found!r}?"


def _restored(cls: type[ActgentError], args: tuple[object, ...]) -> ActgentError:
    error = cls.__new__(cls)
    error.args = args
    return error


class ConfigurationError(ActgentError, ValueError):
    """An argument, a file or a setting is wrong; the text names it and the remedy."""


class MissingKey(ConfigurationError):
    """No API key was given for a model.

    The text names the argument and the variables that were looked at, never a value.
    """

    def __init__(self, provider: str, variables: Sequence[str], *, hint: str = "") -> None:
        self.provider = provider
        self.variables = tuple(variables)
        more = f". {hint}" if hint else ""
        super().__init__(
            f"no API key for {provider}: pass api_key=..., or set {' or '.join(self.variables)}{more}"
        )


class DuplicateTool(ConfigurationError):
    """Two tools of one agent have the same name, so a call could mean either."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"two tools are named {quoted(name)}: give one of them another name")


class InvalidToolSchema(ConfigurationError):
    """The arguments of a tool have no usable JSON Schema: the schema is broken, or a type cannot be expressed in it."""

    def __init__(self, reason: str, *, tool_name: str = "") -> None:
        self.tool_name = tool_name
        """The tool's name."""
        self.reason = reason
        """The problem and the remedy; also the text of the error."""
        super().__init__(reason)


class SessionExists(ConfigurationError):
    """The id of a new session is taken, in memory or in the journal, by another session of its agent."""

    def __init__(self, agent: str, session_id: str) -> None:
        self.agent = agent
        self.session_id = session_id
        super().__init__(
            f"agent {quoted(agent)} has a session {quoted(session_id)} already: open it with open_session(), or choose another id"
        )


class PriceUnknown(ConfigurationError):
    """A cost limit cannot be kept: no table has the model's price, and nothing is asked before somebody tells it."""

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the price of {model} is not known, so Limits(cost=...) cannot be kept: "
            "pass price=(dollars per million input tokens, output tokens) to the client, or limit tokens instead"
        )


class InvalidFile(ConfigurationError):
    """One place in a file of an agent's folder is wrong; the text quotes names, but no values, which may be secret."""

    def __init__(self, file: str, line: int, reason: str, key: str = "") -> None:
        self.file = file
        self.line = line
        """From 1."""
        self.reason = reason
        self.key = key
        """As in `llm.temperature`; empty where the file itself is meant."""
        super().__init__(f"{file}:{line}: {key}: {reason}" if key else f"{file}:{line}: {reason}")


class InvalidFolder(ConfigurationError):
    """The folder of an agent cannot be used; `problems` are all that was found, each an `InvalidFile`."""

    def __init__(self, problems: Sequence[InvalidFile]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class UsageError(ActgentError, RuntimeError):
    """The calling code did the right thing at the wrong moment."""


class NotRunning(UsageError):
    """The agent is not running: its `async with` block is not open."""

    def __init__(
        self, agent: str, running: Iterable[str] = (), *, pool: str = "", is_elsewhere: bool = False
    ) -> None:
        """Args: `running` are the names of those that run in its place, where it was asked for by its name; `pool` is one that nobody hosts.

        With `is_elsewhere` another process was asked: a node of the pool, or without one a server.
        """
        self.agent = agent
        if is_elsewhere:
            why = _not_hosted(agent, tuple(running), pool)
        elif pool:
            why = (
                f"no node of pool {quoted(pool)} was ever at this broker; look at "
                "pool= of its PoolAgent, or start a node with open_runtime(broker=, pool=)"
            )
        else:
            close = closest(agent, running)
            like = f"did you mean {close!r}? Else " if close else ""
            why = f"{like}open it with `async with agent:` or `await runtime.start(agent)`"
        super().__init__(f"agent {quoted(agent)} is not running: {why}")


def _not_hosted(agent: str, hosted: Sequence[str], pool: str) -> str:
    """Say who was asked for an agent in vain, which one of theirs may be meant, and what to do."""
    who = f"no node of pool {quoted(pool)} hosts it" if pool else "the server does not host it"
    named = f"{', '.join(map(quoted, hosted[:_MOST_NAMED]))}{', ...' * (len(hosted) > _MOST_NAMED)}"
    known = meant(agent, hosted) or (f"hosted there: {named}." if hosted else "")
    else_do = "start a node that does, or look at pool=" if pool else "start it there, or look at the address"
    return f"{who}; {known} Else {else_do}" if known else f"{who}; {else_do}"


class OutsideTrio(UsageError):
    """Agents run on trio, and this call came from elsewhere; it did nothing."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        """The call that was refused."""
        super().__init__(
            f"{what} works inside of trio, and {reason}: run the program with trio.run(main); or call the agent through "
            "open_portal() from asyncio, notebooks, threads and synchronous code; or serve with trio (hypercorn with "
            "--worker-class trio, anyio.run(main, backend='trio')). See docs/asyncio.md"
        )


class PortalClosed(UsageError):
    """The portal's thread does not take calls, or stopped this one; nothing waits there for its result."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: open another one with open_portal()")


class SessionClosed(UsageError):
    """The session was closed; it takes no more messages."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {shown(session_id)} is closed: create a new one with agent.create_session()"
        )


_NO_SESSION = ": ensure_session(owner, session_id) makes it where it is missing, runtime.sessions() lists those there are"


class SessionNotFound(UsageError, LookupError):
    """The agent has no session of this id."""

    def __init__(self, agent: str, session_id: str) -> None:
        self.agent = agent
        self.session_id = session_id
        super().__init__(f"agent {quoted(agent)} has no session {quoted(session_id)}{_NO_SESSION}")


class CursorUnknown(UsageError):
    """A reader has seen more records of a session than it has: it is another one, or the journal is an older copy."""

    def __init__(self, session_id: str, cursor: int, records: int) -> None:
        self.session_id = session_id
        self.cursor = cursor
        self.records = records
        super().__init__(
            f"session {quoted(session_id)} has {counted(records, 'record')}, and its reader has seen {cursor}: it was made again, or the journal "
            "is an older copy; follow it from its beginning, after=0"
        )


class WrongOwner(SessionNotFound):
    """The session of this id belongs to another owner.

    The text says no more than that this owner has none, and the class is a `SessionNotFound`: a service that answers
    both alike, e.g. with 404, tells nobody which ids exist.
    """

    def __init__(self, agent: str, session_id: str, owner: str) -> None:
        super().__init__(agent, session_id)
        self.owner = owner
        """Whoever asked for it."""
        self.args = (
            f"agent {quoted(agent)} has no session {quoted(session_id)} of owner {quoted(owner)}{_NO_SESSION}",
        )


class DepsMissing(UsageError):
    """A session needs deps for its tools and has none; what waits in it is left as it is."""

    def __init__(self, agent: str, session_id: str, why: str) -> None:
        self.agent = agent
        self.session_id = session_id
        super().__init__(
            f"agent {quoted(agent)}, session {quoted(session_id)}: {why}; pass deps= to open_session(), create_session() "
            "or run(), or give the agent an async function of the session: Agent(deps=function)"
        )


class NotSerializable(UsageError, TypeError):
    """A value cannot be written into a journal or sent; `key` says where it stands."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        super().__init__(
            f"{key or 'a value'} cannot be written: {reason}; use None, bool, int, float, str, bytes, "
            "lists, tuples, mappings and aware datetimes"
        )


class NotSuspended(UsageError):
    """The session is not in a suspended state: no call of it waits for a person."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {shown(session_id)} is not in a suspended state: nothing in it waits for an answer"
        )


class ApprovalNotFound(UsageError, LookupError):
    """Nobody asked for this in the session; an answer for other arguments has another id, too."""

    def __init__(self, approval_id: str, session_id: str) -> None:
        self.approval_id = approval_id
        self.session_id = session_id
        super().__init__(
            f"invalid suspension id: nothing waits for approval {quoted(approval_id)}"
            f"{f' in session {shown(session_id)}' if session_id else ''}; see session.approvals, or await agent.approvals()"
        )


class ApprovalMismatch(UsageError):
    """The answer is for another tool, other arguments or another session than what waits under this id."""

    def __init__(self, approval_id: str) -> None:
        self.approval_id = approval_id
        super().__init__(
            f"approval {quoted(approval_id)} does not stand for the tool, arguments and session that were answered: "
            "nothing was decided; answer what session.approvals shows"
        )


class AlreadyDecided(UsageError):
    """Each approval is answered once; `decision` is what was decided."""

    def __init__(self, approval_id: str, decision: object, word: str) -> None:
        self.approval_id = approval_id
        self.decision = decision
        super().__init__(f"approval {quoted(approval_id)} was {word} already: an answer counts once")


class AlreadyAnswered(UsageError):
    """The message was said before under this id, and has ended; what it came to is not known any more."""

    def __init__(self, message_id: str, session_id: str) -> None:
        self.message_id = message_id
        self.session_id = session_id
        super().__init__(
            f"message {quoted(message_id)} of session {quoted(session_id)} was answered before, and its reply is not kept: "
            "it stands in session.history"
        )


class ModeRefused(UsageError):
    """The session stays in its mode: who asked may not switch it to the other one, or not now."""

    def __init__(self, mode: str, wanted: str, reason: str) -> None:
        self.mode = mode
        """The mode that it stays in."""
        self.wanted = wanted
        self.reason = reason
        super().__init__(f"the mode stays {mode!r} and does not become {wanted!r}: {reason}")


class DeadLetterGone(UsageError):
    """A dead letter cannot be sent: it was sent already, is being sent, or newer ones took its place."""

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(
            f"the dead letter to actor {quoted(actor)} cannot be sent: {reason}; list them again for those that are left"
        )


class WouldDeadlock(UsageError):
    """A handler or a tool waits for the very turn that it runs in."""

    def __init__(self, what: str, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"{what} of session {shown(session_id)} was called from one of its own handlers or tools, "
            "which the session waits for: return first, or start a task of your own"
        )


class WaitCycle(WouldDeadlock):
    """A session or an actor waits for one that waits for it, itself or through others; `path` names them all."""

    def __init__(self, path: Sequence[str]) -> None:
        self.path = tuple(path)
        """`agent/session`, or the name of a plain actor, from the one that asked last through all the others back to it."""
        self.session_id = self.path[0].partition("/")[2]
        UsageError.__init__(
            self,
            f"they would wait for each other for ever: {' -> '.join(self.path)}; "
            "let the last one answer with what it knows, or hand the task on without waiting for it (delegate)",
        )


class InvalidState(UsageError):
    """A change of a session's state does not fit the type that its agent declares with `state=`; the state is unchanged."""

    def __init__(self, type_name: str, reason: str = "") -> None:
        self.type_name = type_name
        """The name of the type."""
        self.reason = reason
        """The place in the state, and what is wrong with it."""
        super().__init__(f"the state does not fit {type_name}: {reason}")


class SessionBusy(UsageError):
    """The session works and was told to take nothing meanwhile; nothing of the message is kept."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {shown(session_id)} is busy and takes no message meanwhile (on_busy='reject'): wait for it with "
            "wait_idle(), send it URGENT, or let it wait with on_busy='queue'"
        )


class MessageTooLarge(UsageError):
    """A message has more bytes than the inbox of the agent or actor takes. It was not accepted."""

    def __init__(self, owner: str, size: int, limit: int) -> None:
        self.owner = owner
        """Who refuses the message, e.g. `agent clerk`."""
        self.size = size
        """Bytes of the message: its texts as UTF-8, and the data of its pictures and files."""
        self.limit = limit
        """Bytes that a message may have."""
        super().__init__(
            f"the message has {counted(size, 'byte')}, and {owner} takes messages of at most "
            f"{counted(limit, 'byte')}: send less, give pictures and files by url=, or raise message_bytes= of the agent"
        )


class InboxFull(ActgentError):
    """The inbox took no further message within the message's deadline."""

    def __init__(self, owner: str, capacity: int, unit: str = "message") -> None:
        self.owner = owner
        self.capacity = capacity
        """The bound that is reached, in `unit`."""
        self.unit = unit
        """`message` or `byte`."""
        super().__init__(
            f"the inbox of {owner} is full ({counted(capacity, unit)}): send slower, wait longer (enqueue_timeout=, or the deadline= of an actor's message), or raise its bound"
        )


class DeadlineExceeded(ActgentError, TimeoutError):
    """An ask was not answered in time; the work may still go on at the other end."""

    def __init__(self, asked: str, seconds: float) -> None:
        self.asked = asked
        self.seconds = seconds
        super().__init__(f"{asked} did not answer within {seconds:g} s")


class ActorFailed(ActgentError):
    """The asked actor is gone, or raised; the cause is chained."""

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(f"actor {quoted(actor)} gave no answer: {reason}")


class Suspended(ActgentError):
    """The turn waits for something outside (an approval, a timer), named by `ids`."""

    def __init__(self, ids: Sequence[str], tools: Sequence[str] = ()) -> None:
        self.ids = tuple(ids)
        self.tools = tuple(tools)
        """The tools whose calls wait, in the order of `ids`; empty where they are not known."""
        named = f"call of {', '.join(map(quoted, self.tools))}" if self.tools else "tool call"
        which = ", ".join(self.ids) or "an outside event"
        super().__init__(
            f"the turn waits for a person to decide over its {named} ({which}): decide and get the answer with "
            "agent.resume({approval_id: Approve()}), or with session.answer(approval_id, Approve()) or Reject(); "
            "session.approvals and this error's ids name what waits"
        )


class Fenced(ActgentError):
    """Another process owns the session by now; what was about to be written is not."""


class SessionMoved(Fenced):
    """Another process goes on with the session, or is about to: nothing more of it is done, written or told here.

    What was on its way may be accepted there: say it again under the same `message_id`.
    """

    def __init__(self, agent: str, session_id: str) -> None:
        self.agent = agent
        """Whose session it is."""
        self.session_id = session_id
        """The session; `open_session` where it lives now finds it."""
        self.message_id = ""
        """The message that was on its way, by the id under which it can be said again; empty where none was."""
        self.is_written = False
        """True: what was to be written is in the journal, for the process that goes on with it."""
        super().__init__(
            f"session {shown(session_id)} of agent {shown(agent)} lives in another process by now: take what agent.open_session() "
            "gives there, or on any node of its cluster, and say again what was not answered, under the same message_id"
        )


class BrokerLost(ActgentError):
    """There is no connection to a message broker, or it was lost; what was sent last may have arrived or not."""

    def __init__(self, place: str, why: str) -> None:
        self.place = place
        """Which broker, without a password."""
        super().__init__(f"the broker {place} is lost: {why}")


class FeedLagged(ActgentError):
    """A reader of a journal's feed read slower than was written; it goes on with what comes now."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        super().__init__(
            f"the reader of the feed fell behind, and {counted(lost, 'step that waited for it was', 'steps that waited for it were')} let go: "
            "read() gives them behind the last number that was seen; read faster, or raise capacity="
        )


class JournalError(ActgentError):
    """The journal could not do what it was asked; nothing that it had confirmed is lost by that."""


class JournalFull(JournalError):
    """There is no space; nothing of the step was written, and it can be committed again when there is."""


class JournalFailed(JournalError):
    """The disk or the database server failed; the step is written whole or not at all."""


class JournalSlow(JournalFailed):
    """The storage has not answered in time; it goes on with the step, which is written before all that follows, or not at all."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        super().__init__(
            f"the journal's storage has not answered within {patience:g} s: look after its disk or its server, and try again"
        )


class JournalDamaged(JournalError):
    """What is stored is not what was written; nothing of it is used. Other sessions are not concerned."""

    def __init__(self, reason: str, *, session_id: str | None = None, record: int | None = None) -> None:
        self.session_id = session_id
        """None: the journal as a whole."""
        self.record = record
        """The number of the first record that is not good, from 1; None where it is not known."""
        session = f"session {quoted(session_id)} in the journal" if session_id is not None else "the journal"
        place = "" if record is None else f" at record {record}"
        super().__init__(f"{session} is damaged{place}: {reason}")


class JournalKeyError(JournalError):
    """A record is encrypted, and the keys of the environment do not open it."""

    def __init__(self, key_id: str, *, is_there: bool = False) -> None:
        self.key_id = key_id
        self.is_there = is_there
        """True: there is a key of this id, and it is another one, or the record was moved or altered on purpose."""
        says = (
            f"the key {key_id!r} of ACTGENT_JOURNAL_KEYS does not open a record that names it: it is another key, or the "
            "record was altered"
            if is_there
            else f"a record is encrypted with the key {key_id!r}: add it to ACTGENT_JOURNAL_KEYS"
        )
        super().__init__(says)


class JournalVersion(JournalError):
    """Another actgent wrote the journal, a newer one unless it is only read; nothing was changed."""

    def __init__(self, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        advice = (
            "use the actgent that wrote it, or a newer one"
            if found > supported
            else "to read it without writing, start its agents once with this actgent, or read a copy of it"
        )
        super().__init__(
            f"the journal has schema version {found}, this actgent knows versions up to {supported}: {advice}"
        )


class MemoryNotFound(UsageError, LookupError):
    """The owner has no long-term memory of this id, and is shown none; another owner's is none either."""

    def __init__(self, memory_id: str) -> None:
        self.memory_id = memory_id
        super().__init__(
            f"there is no memory {quoted(memory_id)}: recall() or page() tell the ids of those there are"
        )


class MemoryReplaced(UsageError):
    """Another memory stands in the place of the one that was to be replaced."""

    def __init__(self, memory_id: str, by: str) -> None:
        self.memory_id = memory_id
        self.by = by
        super().__init__(f"the memory {quoted(memory_id)} was replaced by {quoted(by)}: update that one")


class MemoriesFull(ActgentError):
    """An owner has as many long-term memories as may be, and all of them are marked to be kept: nothing was written."""

    def __init__(self, owner: str, capacity: int) -> None:
        self.owner = owner
        self.capacity = capacity
        super().__init__(
            f"the owner {quoted(owner)} has {counted(capacity, 'memory', 'memories')}, and all are kept: forget some, keep fewer, "
            "or raise Memories(capacity=...)"
        )


class MemoriesFailed(ActgentError):
    """What stores long-term memories failed: the disk, the file, or the database server.

    What was confirmed before stays. A call that met it wrote nothing, or, where a connection was lost on the way, may
    have: repeated with the same `key` it is done once.
    """


class DatabaseFailed(ActgentError):
    """The database of an agent is not open, failed, or refuses a statement; its words are in the text.

    Nothing of the change holds, or, where a connection was lost on the way, all of it may: repeated with the same `key` it is
    done once.
    """


class WireError(ActgentError):
    """Bytes are not of the form that this version of actgent reads; a newer one may."""


class ThreadsLeft(ActgentError):
    """Sync functions still run in threads although their block was left.

    Python cannot stop a thread: the functions are named, so that their author can.
    """

    def __init__(self, names: Sequence[str], grace: float) -> None:
        self.names = tuple(names)
        super().__init__(
            f"{counted(len(self.names), 'thread')} still ran {grace:g} s after their agent was left: {', '.join(self.names)}; "
            "make these tools async, or let them check for a deadline of their own"
        )


class HandlerFailed(ActgentError):
    """A session's handler raised or was cut at its timeout; the cause is chained."""

    def __init__(self, handler: str, reason: str) -> None:
        self.handler = handler
        self.reason = reason
        super().__init__(f"handler {handler} failed: {reason}")


class GuardRefused(ActgentError):
    """A guard of the agent refused a message, or an answer: see `Agent.guard`."""

    def __init__(self, guard: str, reason: str) -> None:
        self.guard = guard
        """The name of the function."""
        self.reason = reason
        super().__init__(f"the guard {guard} refused: {reason}")


class RemoteError(ActgentError):
    """A server of agents answered with an error for which there is no class of its own."""

    def __init__(self, message: str, *, kind: str = "", status: int | None = None) -> None:
        self.kind = kind
        """The server's name of the error."""
        self.status = status
        """The HTTP status, where there was one."""
        super().__init__(f"the server refused it ({kind}): {message}" if kind else message)


class AccessRefused(RemoteError):
    """The server does not know the token, or it does not allow what was asked."""


class ServerUnreachable(RemoteError):
    """The server gave no answer within the client's patience; what has a message id can be said again safely."""

    def __init__(self, reason: str, *, was_sent: bool = False) -> None:
        self.was_sent = was_sent
        """True: it may have done what it was asked."""
        super().__init__(
            f"the server cannot be reached ({reason}): look whether it runs, and at the address; patience= of connect() is "
            "how long a client tries"
        )


class ForeignExit(ActgentError):
    """A tool, model, handler or rule raised something that is no `Exception`, e.g. `SystemExit`; the cause is chained.

    Where it was called it counts as any other failure: what ends a program is for the program to raise. So does what cannot be
    handled, because its class redefines what Python and trio do with exceptions, such as `with_traceback`; of that only the
    words are kept.
    """

    def __init__(self, kind: str, *, redefined: str = "", words: str = "") -> None:
        self.kind = kind
        """The name of its class."""
        self.redefined = redefined
        """What the class redefines; empty where it is no `Exception`."""
        why = f"whose class redefines {redefined}" if redefined else "which is not an Exception"
        said = f" ({words})" if words else ""
        super().__init__(f"{kind} was raised{said}, {why}: here it counts as any other failure")


class Interrupted(ActgentError):
    """The turn was stopped by `Session.interrupt` or an URGENT message."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"interrupted: {reason}")


class Stopped(ActgentError):
    """The agent's block was left before this message was dealt with."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        super().__init__(f"agent {quoted(agent)} stopped before this message was answered")


class TooManySchedules(ActgentError):
    """A session has as many schedules as it may; nothing was set."""

    def __init__(self, session_id: str, limit: int) -> None:
        self.session_id = session_id
        self.limit = limit
        super().__init__(
            f"session {quoted(session_id)} has {counted(limit, 'schedule')}, and may have no more: remove some"
        )


class LimitReached(ActgentError):
    """A turn or a session used up one of its limits, alone or with what it gave to other agents."""

    def __init__(
        self,
        limit: str,
        value: float,
        *,
        field: str = "",
        used: Mapping[str, float] | None = None,
        reserved: float = 0,
        estimated: float = 0,
        agent: str = "",
        session_id: str = "",
        is_session: bool = False,
        owner: str = "",
        period: str = "",
        argument: str = "",
        is_call: bool = False,
    ) -> None:
        self.limit = limit
        """In words, e.g. `model calls`."""
        self.value = value
        self.field = field
        """What to raise: the name of an argument of `Limits`."""
        self.argument = argument
        """What to raise, where the limit was set by another argument than `limits=`: its name; otherwise empty."""
        self.used = dict(used or {})
        """What was used up to then, of all that is counted: `{"model_calls": 5, "tokens": 1200}`."""
        self.reserved = reserved
        """What calls under way had reserved of the limit that was reached."""
        self.estimated = estimated
        """What the next call was estimated to take at least, of the limit that was reached; 0 where it is not that."""
        self.agent = agent
        self.session_id = session_id
        """Whose limit it was; not always the session that met it."""
        self.is_session = is_session
        """True: of the session as a whole, from `create_session(limits=...)`; False: of one turn."""
        self.owner = owner
        """Whose quota it was, over all sessions; empty: it was no quota."""
        self.period = period
        """Of a quota: `day` or `month`."""
        self.is_call = is_call
        """True if the limit was set for this turn alone, e.g. by `run(limits=...)`."""
        what = "session" if is_session else "turn"
        spent = ", ".join(_counted(amount, name.replace("_", " ")) for name, amount in self.used.items())
        if reserved:
            spent = f"{spent or 'nothing'}; reserved by calls under way: {_number(reserved)}"
        if estimated:
            spent = f"{spent or 'nothing'}; the next call is estimated to take at least {_number(estimated)}"
        if spent:
            spent = f" (used: {spent})"
        remedy = argument if argument.endswith(")") else argument and f"{argument}=..."
        remedy = remedy or (f"Limits({field}=...)" if field else "it with Limits(...)")
        if is_call:
            remedy = f"run(limits={remedy})"
        if owner:
            super().__init__(
                f"the owner {quoted(owner)} reached the quota of {_number(value)} {limit} a {period}{spent}: "
                f"it begins anew with the next {period}; raise Quotas({period}=Limits({field}=...)) if that is too low"
            )
            return
        whose = (
            f" of {what + ' ' + quoted(session_id) + ' of ' if is_session else ''}agent {quoted(agent)}"
            if agent
            else ""
        )
        super().__init__(
            f"the {what} reached its limit of {_number(value)} {limit}"
            f"{spent}: raise {remedy}{whose} if that is too low"
        )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _counted(value: float, what: str) -> str:
    return f"{_number(value)} {what.removesuffix('s') if value == 1 else what}"


class ContextOverflow(ActgentError):
    """What has to be shown to the model takes more than its context budget: nothing was sent.

    The session goes on: with the next message a note stands in the place of what was too long.
    """

    def __init__(
        self, text: str, *, parts: Sequence[tuple[str, int]] = (), tokens: int = 0, budget: int = 0
    ) -> None:
        super().__init__(text)
        self.parts = tuple(parts)
        """The largest of it, and about how many tokens each of them takes."""
        self.tokens = tokens
        """About how many tokens it takes."""
        self.budget = budget


class ModelError(ActgentError):
    """A model call gave no answer.

    `retryable` says whether the same call may succeed later, `status` is the HTTP status
    if there was one, `code` the provider's own word for it. An exception that the client of a
    model raises, e.g. a function of the program, is the `__cause__` of such an error.
    """

    retryable = False
    client_error: str = ""
    """The class of the exception that the model's own client raised; empty if the provider or actgent reported the error."""

    def __init__(
        self,
        message: str,
        *,
        model: str = "",
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> None:
        self.model = model
        self.status = status
        self.code = code
        self.request_id = request_id
        super().__init__(f"{model}: {message}" if model else message)


class BadRequest(ModelError):
    """The provider refuses the request itself (400, 404, 413, 422); repeating it does not help."""


class UnsupportedPart(BadRequest):
    """A message part (an image, a file, a block of a newer API) that this client cannot carry."""


class NotAuthorized(ModelError):
    """The provider does not accept the key (401), or not for this model (403)."""


class QuotaExhausted(ModelError):
    """The account has no credit or quota left; only its owner can change that."""


class RateLimited(ModelError):
    """Too many requests or tokens (429); `retry_after` is the provider's wish in seconds, if any."""

    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None, **details: object) -> None:
        self.retry_after = retry_after
        super().__init__(message, **details)  # type: ignore[arg-type]


class ProviderUnavailable(ModelError):
    """The provider cannot be reached or is overloaded (5xx, 529, no connection)."""

    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None, **details: object) -> None:
        self.retry_after = retry_after
        super().__init__(message, **details)  # type: ignore[arg-type]


class ModelTimeout(ModelError):
    """The model call took longer than its timeout."""

    retryable = True


class BrokenAnswer(ModelError):
    """The answer stopped before its end, or is not what the API promises; nothing of it is used."""

    retryable = True


class AnswerError(ActgentError):
    """The model answered, but not with something that can be acted on; `raw` is its text."""

    def __init__(self, reason: str, raw: str = "") -> None:
        self.reason = reason
        self.raw = raw
        super().__init__(reason)


class ParseError(AnswerError):
    """The answer is not in the form that the protocol asks for; the reason goes back to the model."""


class EmptyAnswer(AnswerError):
    """The answer has neither text nor calls."""


class TruncatedAnswer(AnswerError):
    """The answer was cut at the token limit: raise max_tokens, or ask for less."""


class Refusal(AnswerError):
    """The model declined to answer."""


class ContentFiltered(AnswerError):
    """The provider's content filter removed the answer."""


class ToolError(ActgentError):
    """A tool call failed; raised inside a tool, its text is what the model reads."""


class AskPerson(ToolError):
    """A tool's question to a person, raised in it: the session is suspended until somebody answers.

    `form` is a JSON Schema of what `Respond` may carry, or `Field`s of `actgent.forms`, `timeout` seconds to answer, `risk`
    `low`, `medium`, `high` or `critical`. What is decided is the call's result; with `again` an approved call runs once more
    instead, with the decision as `ToolContext.approval`.
    """

    def __init__(
        self,
        question: str,
        *,
        form: object = None,
        timeout: float | None = None,
        again: bool = False,
        risk: str = "",
    ) -> None:
        self.question = question
        self.form = form
        self.risk = risk
        self.timeout = timeout
        self.again = again
        super().__init__(f"a person has to be asked, which is not possible here: {question}")


class ToolNotFound(ToolError):
    """The model called a tool that the agent does not have, or that it may not call."""

    def __init__(self, name: str, available: Sequence[str] = (), lost: Sequence[str] = ()) -> None:
        self.name = name
        known = f"; there are: {', '.join(sorted(available)[:20])}" if available else ""
        away = f"; tools of {', '.join(map(shown, sorted(lost)[:20]))} are not available now" if lost else ""
        super().__init__(f"tool {quoted(name)} not found{known}{away}")


class ToolsetUnavailable(ToolError):
    """The tool's toolset is not connected, so that the call never ran."""

    def __init__(self, toolset: str, reason: str) -> None:
        self.toolset = toolset
        self.reason = reason
        super().__init__(
            f"tools of {shown(toolset)} are not available: {reason}; try again later, or go on without"
        )


class AddressRefused(ToolError):
    """A tool was to connect to an address that is not public and was not opened for it."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(
            f"the host {quoted(host)} cannot be reached from here: its address is not public ({reason})"
        )


class RequestFailed(ToolError):
    """An API answered a tool's request with an error, or not at all; the text has the beginning of its answer."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(reason)


class InvalidArguments(ToolError):
    """The arguments do not fit the tool's schema; the text says where."""


class UnusableResult(ToolError):
    """JSON cannot carry a value, such as a change of the state or a coroutine that a tool forgot to await.

    Another value that a tool returned is no error: the tool did its work, and the model reads `str()` of the value.
    """


class OutcomeUnknown(ToolError):
    """Nobody knows whether a call took effect; raised in a tool, it makes the result's status `outcome_unknown`.

    Of a tool whose effect is `pure` or `idempotent` it is an error like any other: the model may call it again.
    """


class NoThread(ToolError):
    """A sync function never began: it waited too long for a thread, or too many of its agent hang."""


class ToolTimeout(ToolError):
    """The tool ran longer than its timeout."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        super().__init__(f"tool {quoted(name)} did not finish within {seconds:g} s")


# --- kinds of failures -------------------------------------------------------------------

KINDS: tuple[tuple[type[Exception], str], ...] = (
    (ParseError, "parse"),
    (ModelError, "model"),
    (LimitReached, "limit"),
    (ContextOverflow, "context"),
    (PriceUnknown, "limit"),
    (HandlerFailed, "handler"),
    (GuardRefused, "guard"),
    (Refusal, "refusal"),
    (ContentFiltered, "filter"),
    (TruncatedAnswer, "length"),
    (EmptyAnswer, "empty"),
    (Interrupted, "interrupted"),
    (DeadlineExceeded, "deadline"),
    (Stopped, "stopped"),
    (SessionClosed, "stopped"),
    (DepsMissing, "deps"),
    (JournalError, "journal"),
    (SessionMoved, "moved"),
    (Fenced, "journal"),
)
"""Everything else is what the turn was doing: `model`, or `internal` for a mistake in actgent or in a user's protocol."""


def kind_of(error: Exception, otherwise: str = "internal") -> str:
    """The `Failure.kind` of an exception."""
    return _kind_of_class(type(error)) or otherwise  # type: ignore[arg-type]  # classes are hashable


@functools.lru_cache(maxsize=256)
def _kind_of_class(cls: type[Exception]) -> str | None:
    return next((kind for known, kind in KINDS if issubclass(cls, known)), None)
