"""All exceptions of actgent, in one tree.

The first level of the tree shows the origin of the error; the class shows the remedy.

    ActgentError
    ├── ConfigurationError          mistake of the developer: a wrong argument, file or setting
    │   ├── MissingKey              no API key in the arguments or the environment variables
    │   ├── DuplicateTool           two tools of one agent have the same name
    │   ├── InvalidToolSchema       the arguments of a tool have no usable JSON Schema, see `tool_name`
    │   ├── SessionExists           the id of a new session is already in use by the agent
    │   ├── PriceUnknown            a cost limit is set, but the price of the model is unknown
    │   ├── InvalidFile             one error in a file of an agent's folder, see `file`, `line`, `key`
    │   └── InvalidFolder           all errors found in an agent's folder, see `problems`
    ├── UsageError                  mistake of the calling code: a valid object, used at the wrong moment
    │   ├── NotRunning              the agent's `async with` block is not open
    │   ├── OutsideTrio             called from asyncio, without an event loop, or from another thread than the agent's
    │   ├── PortalClosed            the portal was closed, has failed, or belongs to the parent of a forked process
    │   ├── SessionClosed           the session was closed
    │   ├── SessionNotFound         the agent has no session with this id
    │   │   └── WrongOwner          the session with this id belongs to another owner
    │   ├── InvalidCursor           the cursor is after the last record of the session
    │   ├── NotSerializable         a value cannot be written to the journal
    │   ├── InvalidState            a state change does not fit the type of `state=`, see `reason`
    │   ├── SessionBusy             the session has a running turn and rejects messages (on_busy="reject")
    │   ├── NotSuspended            an answer for a session without a pending approval
    │   ├── ApprovalNotFound        an answer with an approval id that is not pending in the session
    │   ├── ApprovalMismatch        an answer for another tool or other arguments than the pending call
    │   ├── ApprovalAlreadyDecided  a second answer to one approval, see `decision`
    │   ├── DuplicateMessage        a repeated message id whose reply is no longer stored
    │   ├── DeadLetterGone          a dead letter was removed, or another task is sending it
    │   ├── MessageTooLarge         a message exceeds the size limit of the inbox, see `size` and `limit`
    │   ├── ModeChangeRejected      the caller may not switch the mode, or not at this moment
    │   ├── MemoryNotFound          the owner has no long-term memory with this id
    │   ├── MemoryReplaced          a newer memory has replaced this memory, see `by`
    │   └── WouldDeadlock           a handler or tool waits for the turn that it runs in
    │       └── DeadlockDetected    sessions or actors wait for each other in a cycle, see `path`
    ├── InboxFull                   backpressure: retry later, or raise the capacity
    ├── DeadlineExceeded            an ask was not answered before its deadline
    ├── ActorFailed                 the asked actor raised or has stopped
    ├── FeedLagged                  a feed reader was too slow and lost records, see `lost`; the journal has them
    ├── Suspended                   the turn is suspended until an approval or event arrives, see `ids`
    ├── RemoteError                 the server returned an error without a more precise class, see `kind`
    │   ├── PermissionDenied        the token is invalid or lacks a permission
    │   └── ServerUnreachable       the server did not respond within the retry timeout, see `was_sent`
    ├── Fenced                      another process has acquired the session
    │   └── SessionMoved            ... and continues it: send the message there, see `session_id`
    ├── JournalError                the journal or its storage failed
    │   ├── JournalFull             the storage is full: nothing was written; the write can be retried
    │   ├── JournalFailed           the disk or the database server failed
    │   │   └── JournalSlow         ... to respond before the timeout
    │   ├── JournalDamaged          stored records are corrupt, see `session_id` and `record`
    │   ├── JournalKeyError         the encryption key of a record is missing or wrong, see `key_id`
    │   └── JournalVersion          another version of actgent wrote the journal
    ├── MemoriesFailed              the storage of long-term memories failed; retry with the same key
    ├── DatabaseFailed              the database of an agent failed or rejected a statement; retry with the same key
    ├── MemoriesFull                the owner has reached the capacity, and all memories are pinned
    ├── WireError                   serialized data that this version cannot decode
    ├── ThreadsStillRunning         sync functions still run in threads after the shutdown grace period
    ├── GuardrailTripped            a guard of the agent rejected a message or an answer
    ├── HandlerFailed               a session handler raised or exceeded its timeout
    ├── UserCodeExit                user code raised a BaseException that is no Exception, e.g. SystemExit
    ├── Interrupted                 the turn was interrupted
    ├── Stopped                     the agent stopped before the turn completed
    ├── TooManySchedules            the session has reached its maximum number of schedules
    ├── LimitReached                a usage limit of a turn or session is reached, see `limit`, `used`, `session_id`
    ├── ContextOverflow             the request exceeds the context budget, see `parts`, `tokens`, `budget`
    ├── ModelError                  the model call failed; `retryable` is True if a retry can succeed
    │   ├── BadRequest              400, 404, 413, 422: the request is invalid
    │   │   └── UnsupportedPart     the model client cannot send a part of the message
    │   ├── NotAuthorized           401, 403: the API key is invalid or lacks a permission
    │   ├── QuotaExhausted          the account has no credit left
    │   ├── RateLimited             429: retry later, see `retry_after`
    │   ├── ProviderUnavailable     5xx, 529, no connection
    │   ├── ModelTimeout            no answer before the timeout
    │   └── StreamInterrupted       the answer is incomplete or violates the provider's API
    ├── AnswerError                 the model answered, but the answer cannot be used
    │   ├── ParseError              the answer is not in the format of the protocol
    │   ├── EmptyAnswer             the answer has neither text nor tool calls
    │   ├── TruncatedAnswer         the answer was cut at the token limit
    │   ├── Refusal                 the model or its provider declined
    │   └── ContentFiltered         the provider's content filter removed the answer
    └── ToolError                   a tool call failed; raise it in a tool to choose the text that the model reads
        ├── ApprovalRequired        a tool asks for a human decision: raise it in a tool
        ├── InvalidToolResult       a value cannot be encoded as JSON
        ├── OutcomeUnknown          the call may have taken effect: raise it in a tool that lost its connection
        ├── ThreadPoolExhausted     a sync tool did not start: no thread became free in time
        ├── ToolNotFound            the agent has no tool with this name
        ├── ToolsetUnavailable      the toolset of the tool is not connected
        ├── AddressBlocked          a tool tried to connect to an address of the internal network
        ├── HTTPToolError           an HTTP API returned an error or did not respond
        ├── InvalidArguments        the arguments do not fit the schema of the tool
        └── ToolTimeout             the tool exceeded its timeout
"""

import functools
from collections.abc import Iterable, Mapping, Sequence

from .text_escaping import counted, quoted, shown

_MAX_LISTED_NAMES = 20
"""Maximum number of names that an error text lists."""


class ActgentError(Exception):
    """Base class of all exceptions that actgent raises on purpose."""

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle the error by its `args` and attributes: most constructors take other arguments than the text."""
        return _restore_error, (type(self), self.args), self.__dict__


_SHORT_WORD_LENGTH = 8
_SIMILARITY, _SHORT_SIMILARITY = 0.75, 0.65
"""Minimum `difflib` ratio for a suggestion: for words of `_SHORT_WORD_LENGTH` or more characters, and for shorter words.

At 0.6 `stream=` suggested `threads=`, at 0.7 `message_history=` suggested `message_id=`. `retry` and `retries` have 0.67.
"""


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the word of `known` that the unknown `word` probably means; None if no word is similar.

    A known word matches if its spelling is similar. Otherwise it matches if only this word contains the unknown word as
    an underscore-separated part: `key` matches `api_key`.
    """
    import difflib  # noqa: PLC0415 - only unknown words need it

    spelled = {each.casefold(): each for each in known}
    word = word[:100].casefold()
    cutoff = _SIMILARITY if len(word) >= _SHORT_WORD_LENGTH else _SHORT_SIMILARITY
    similar = difflib.get_close_matches(word, spelled, 1, cutoff)
    if not similar:
        similar = [each for each in spelled if word in each.split("_")]
    return spelled[similar[0]] if len(similar) == 1 else None


def did_you_mean_or_list(word: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown word: `did you mean 'this'?`, or else the list of all known words."""
    known = tuple(known)
    return did_you_mean(word, known) or (
        f"choose one of {', '.join(known)}" if known else "the list of valid names is empty"
    )


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return `did you mean 'this'?` for the known word most similar to `word`, or an empty string if no word is similar."""
    found = closest(str(word), known)
    return "" if found is None else f"did you mean {found!r}?"


def _restore_error(cls: type[ActgentError], args: tuple[object, ...]) -> ActgentError:
    error = cls.__new__(cls)
    error.args = args
    return error


class ConfigurationError(ActgentError, ValueError):
    """An argument, a file or a setting is wrong; the text names it and the remedy."""


class MissingKey(ConfigurationError):
    """The model has no API key.

    The text names the argument and the environment variables that were checked, never their values.
    """

    def __init__(self, provider: str, variables: Sequence[str], *, hint: str = "") -> None:
        self.provider = provider
        self.variables = tuple(variables)
        more = f". {hint}" if hint else ""
        super().__init__(
            f"no API key for {provider}: pass api_key=..., or set {' or '.join(self.variables)}{more}"
        )


class DuplicateTool(ConfigurationError):
    """Two tools of one agent have the same name, so a call would be ambiguous."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"two tools are named {quoted(name)}: give one of them another name")


class InvalidToolSchema(ConfigurationError):
    """The arguments of a tool have no usable JSON Schema: the schema is invalid, or a type cannot be expressed in JSON Schema."""

    def __init__(self, reason: str, *, tool_name: str = "") -> None:
        self.tool_name = tool_name
        """Name of the tool."""
        self.reason = reason
        """The problem and the remedy; also the text of the error."""
        super().__init__(reason)


class SessionExists(ConfigurationError):
    """The agent already has a session with the id of the new session, in memory or in the journal."""

    def __init__(self, agent: str, session_id: str) -> None:
        self.agent = agent
        self.session_id = session_id
        super().__init__(
            f"agent {quoted(agent)} already has a session {quoted(session_id)}: open it with open_session(), or choose another id"
        )


class PriceUnknown(ConfigurationError):
    """A cost limit cannot be enforced because the price of the model is unknown; no request was sent."""

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the price of {model} is unknown, so Limits(cost=...) cannot be enforced: "
            "pass price=(dollars per million input tokens, output tokens) to the client, or limit tokens instead"
        )


class InvalidFile(ConfigurationError):
    """One error in a file of an agent's folder. The text quotes names but no values, because values can be secret."""

    def __init__(self, file: str, line: int, reason: str, key: str = "") -> None:
        self.file = file
        self.line = line
        """Line number, from 1."""
        self.reason = reason
        self.key = key
        """Dotted key of the setting, e.g. `llm.temperature`; empty if the error concerns the whole file."""
        super().__init__(f"{file}:{line}: {key}: {reason}" if key else f"{file}:{line}: {reason}")


class InvalidFolder(ConfigurationError):
    """The folder of an agent is invalid; `problems` lists every error that was found, as `InvalidFile` objects."""

    def __init__(self, problems: Sequence[InvalidFile]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class UsageError(ActgentError, RuntimeError):
    """The calling code used a valid object at the wrong moment."""


class NotRunning(UsageError):
    """The agent is not running: its `async with` block is not open."""

    def __init__(
        self, agent: str, running: Iterable[str] = (), *, pool: str = "", is_elsewhere: bool = False
    ) -> None:
        """Create the error text for the place where the agent was looked up.

        Args:
            agent: Name of the agent.
            running: Names of the agents that run in the place where `agent` was looked up.
            pool: Name of the cluster pool that was asked; without `is_elsewhere`, no node has ever joined this pool.
            is_elsewhere: True if another process was asked: a node of `pool`, or a server if `pool` is empty.
        """
        self.agent = agent
        if is_elsewhere:
            why = _not_hosted_reason(agent, tuple(running), pool)
        elif pool:
            why = (
                f"no node of pool {quoted(pool)} has ever run in this database; check "
                f"pool= of its PoolAgent, or start a node with open_runtime(cluster={quoted(pool)})"
            )
        else:
            close = closest(agent, running)
            like = f"did you mean {close!r}? Else " if close else ""
            why = f"{like}open it with `async with agent:` or `await runtime.start(agent)`"
        super().__init__(f"agent {quoted(agent)} is not running: {why}")


def _not_hosted_reason(agent: str, hosted: Sequence[str], pool: str) -> str:
    """Return the reason and the remedy for an agent that no other process hosts, with the most similar hosted name."""
    reason = f"no node of pool {quoted(pool)} hosts it" if pool else "the server does not host it"
    named = (
        f"{', '.join(map(quoted, hosted[:_MAX_LISTED_NAMES]))}{', ...' * (len(hosted) > _MAX_LISTED_NAMES)}"
    )
    known = did_you_mean(agent, hosted) or (f"hosted there: {named}." if hosted else "")
    remedy = "start a node that hosts it, or check pool=" if pool else "start it there, or check the address"
    return f"{reason}; {known} Else {remedy}" if known else f"{reason}; {remedy}"


class OutsideTrio(UsageError):
    """An API of trio agents was called outside of trio, or from another thread than the agent's. The call had no effect."""

    def __init__(self, call: str, reason: str) -> None:
        self.call = call
        """Name of the call that was rejected."""
        super().__init__(
            f"{call} works only inside trio, and {reason}: run the program with trio.run(main); or call the agent through "
            "open_portal() from asyncio, notebooks, threads and synchronous code; or serve with trio (hypercorn with "
            "--worker-class trio, anyio.run(main, backend='trio')). See docs/asyncio.md"
        )


class PortalClosed(UsageError):
    """The portal's thread accepts no calls, or stopped during this call."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}: open another one with open_portal()")


class SessionClosed(UsageError):
    """The session was closed and accepts no messages."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {shown(session_id)} is closed: create a new one with agent.create_session()"
        )


_NO_SESSION = ": ensure_session(owner, session_id) creates it if it does not exist, runtime.sessions() lists the existing ones"


class SessionNotFound(UsageError, LookupError):
    """The agent has no session with this id."""

    def __init__(self, agent: str, session_id: str) -> None:
        self.agent = agent
        self.session_id = session_id
        subject = f"agent {quoted(agent)}" if agent else "the runtime"
        super().__init__(f"{subject} has no session {quoted(session_id)}{_NO_SESSION}")


class InvalidCursor(UsageError):
    """A cursor is after the last record of the session.

    Either the session was deleted and created again under the same id, or the journal was restored from an
    older copy.
    """

    def __init__(self, session_id: str, cursor: int, records: int) -> None:
        self.session_id = session_id
        self.cursor = cursor
        self.records = records
        super().__init__(
            f"session {quoted(session_id)} has {counted(records, 'record')}, but the cursor is {cursor}: the session was created "
            "again, or the journal is an older copy; read it from the beginning with after=0"
        )


class WrongOwner(SessionNotFound):
    """The session with this id belongs to another owner.

    The text states only that this owner has no such session, and the class is a `SessionNotFound`. A service
    that maps both to status 404 therefore does not reveal which ids exist.
    """

    def __init__(self, agent: str, session_id: str, owner: str) -> None:
        super().__init__(agent, session_id)
        self.owner = owner
        """The owner that the caller asked for."""
        text = f"agent {quoted(agent)} has no session {quoted(session_id)} of owner {quoted(owner)}"
        self.args = (f"{text}: use another session_id; runtime.sessions(owner=...) lists those of an owner",)


class DepsMissing(UsageError):
    """The tools of a session need `deps=`, and the session has none. Its queued messages stay in the journal."""

    def __init__(self, agent: str, session_id: str, reason: str) -> None:
        self.agent = agent
        self.session_id = session_id
        super().__init__(
            f"agent {quoted(agent)}, session {quoted(session_id)}: {reason}; pass deps= to open_session(), create_session() "
            "or run(), or give the agent an async function of the session: Agent(deps=function)"
        )


class NotSerializable(UsageError, TypeError):
    """A value cannot be written to a journal or sent to another process; `key` is the name or position of the value."""

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        super().__init__(
            f"{key or 'a value'} cannot be serialized: {reason}; use None, bool, int, float, str, bytes, "
            "lists, tuples, mappings and aware datetimes"
        )


class NotSuspended(UsageError):
    """The session has no pending approval."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {shown(session_id)} is not in a suspended state: it has no pending approval"
        )


class ApprovalNotFound(UsageError, LookupError):
    """The session has no pending approval with this id. The id depends on the arguments of the call."""

    def __init__(self, approval_id: str, session_id: str) -> None:
        self.approval_id = approval_id
        self.session_id = session_id
        super().__init__(
            f"invalid suspension id: approval {quoted(approval_id)} is not pending"
            f"{f' in session {shown(session_id)}' if session_id else ''}; see session.approvals, or await agent.approvals()"
        )


class ApprovalMismatch(UsageError):
    """The answered tool, arguments or session differ from the pending call with this approval id."""

    def __init__(self, approval_id: str) -> None:
        self.approval_id = approval_id
        super().__init__(
            f"approval {quoted(approval_id)} was requested for another tool, other arguments or another session: "
            "no decision was recorded; answer an approval that session.approvals lists"
        )


class ApprovalAlreadyDecided(UsageError):
    """The approval has already been answered; `decision` is the decision that counts."""

    def __init__(self, approval_id: str, decision: object, word: str) -> None:
        self.approval_id = approval_id
        self.decision = decision
        super().__init__(f"approval {quoted(approval_id)} was already {word}: only the first answer counts")


class DuplicateMessage(UsageError):
    """A message with this id has already completed, and its reply is no longer stored."""

    def __init__(self, message_id: str, session_id: str) -> None:
        self.message_id = message_id
        self.session_id = session_id
        super().__init__(
            f"message {quoted(message_id)} of session {quoted(session_id)} was already answered, and its reply is no longer stored: "
            "find it in session.history"
        )


class ModeChangeRejected(UsageError):
    """The mode switch was rejected: the caller may not switch to the requested mode, or not at this moment."""

    def __init__(self, mode: str, requested: str, reason: str) -> None:
        self.mode = mode
        """Current mode of the session, which does not change."""
        self.requested = requested
        self.reason = reason
        super().__init__(f"the mode stays {mode!r} and does not become {requested!r}: {reason}")


class DeadLetterGone(UsageError):
    """A dead letter cannot be redelivered: it was already sent, is being sent, or was evicted by newer dead letters."""

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(
            f"the dead letter to actor {quoted(actor)} cannot be sent: {reason}; list them again for the remaining ones"
        )


class WouldDeadlock(UsageError):
    """A handler or a tool waits for the turn that it runs in."""

    def __init__(self, call: str, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"{call} of session {shown(session_id)} was called from one of its own handlers or tools, "
            "which the session waits for: return first, or start a background task"
        )


class DeadlockDetected(WouldDeadlock):
    """Sessions or actors would wait for each other in a cycle; `path` lists them."""

    def __init__(self, path: Sequence[str]) -> None:
        self.path = tuple(path)
        """Members of the cycle:

        `agent/session`, or the name of a plain actor. The first is the last caller, which is also the end of
        the cycle.
        """
        self.session_id = self.path[0].partition("/")[2]
        UsageError.__init__(
            self,
            f"deadlock: they would wait for each other forever: {' -> '.join(self.path)}; "
            "let the last one answer with what it knows, or hand off the task without waiting (delegate)",
        )


class InvalidState(UsageError):
    """A change of a session's state does not fit the type that the agent declares with `state=`. The state is unchanged."""

    def __init__(self, type_name: str, reason: str = "") -> None:
        self.type_name = type_name
        """Name of the declared type."""
        self.reason = reason
        """Position in the state, and the validation error."""
        super().__init__(f"the state does not fit {type_name}: {reason}")


class SessionBusy(UsageError):
    """The session has a running turn and rejects messages until it ends (`on_busy="reject"`). The message was not stored."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {shown(session_id)} is busy and rejects messages during a turn (on_busy='reject'): wait for it with "
            "wait_idle(), send the message as URGENT, or queue it with on_busy='queue'"
        )


class MessageTooLarge(UsageError):
    """A message exceeds the size limit of the inbox of the agent or actor. It was not accepted."""

    def __init__(self, owner: str, size: int, limit: int) -> None:
        self.owner = owner
        """Name of the receiver, e.g. `agent clerk`."""
        self.size = size
        """Size of the message in bytes: its texts in UTF-8 and the data of its images and files."""
        self.limit = limit
        """Maximum size of a message in bytes."""
        super().__init__(
            f"the message has {counted(size, 'byte')}, and {owner} takes messages of at most "
            f"{counted(limit, 'byte')}: send less, give pictures and files by url=, or raise message_bytes= of the agent"
        )


class InboxFull(ActgentError):
    """The inbox had no room for the message before the enqueue timeout or the message's deadline."""

    def __init__(self, owner: str, capacity: int, unit: str = "message") -> None:
        self.owner = owner
        self.capacity = capacity
        """Maximum content of the inbox, in `unit`."""
        self.unit = unit
        """Unit of `capacity`: `message` or `byte`."""
        super().__init__(
            f"the inbox of {owner} is full ({counted(capacity, unit)}): send slower, wait longer (enqueue_timeout=, or the deadline= of an actor's message), or raise its bound"
        )


class DeadlineExceeded(ActgentError, TimeoutError):
    """An ask was not answered before its deadline. The receiver may still be working on it."""

    def __init__(self, asked: str, seconds: float) -> None:
        self.asked = asked
        self.seconds = seconds
        super().__init__(f"{asked} did not answer within {seconds:g} s")


class ActorFailed(ActgentError):
    """The asked actor has stopped or raised; the exception is the `__cause__`."""

    def __init__(self, actor: str, reason: str) -> None:
        self.actor = actor
        self.reason = reason
        super().__init__(f"actor {quoted(actor)} gave no answer: {reason}")


class Suspended(ActgentError):
    """The turn is suspended until an external event arrives (an approval, a timer), identified by `ids`."""

    def __init__(self, ids: Sequence[str], tools: Sequence[str] = ()) -> None:
        self.ids = tuple(ids)
        self.tools = tuple(tools)
        """Names of the tools of the suspended calls, in the order of `ids`; empty if unknown."""
        named = f"call of {', '.join(map(quoted, self.tools))}" if self.tools else "tool call"
        which = ", ".join(self.ids) or "an outside event"
        super().__init__(
            f"the turn waits for an approval of its {named} ({which}): decide and get the answer with "
            "agent.resume({approval_id: Approve()}), or with session.answer(approval_id, Approve()) or Reject(); "
            "session.approvals and this error's ids list what is pending"
        )


class Fenced(ActgentError):
    """Another process has acquired the session. The current transaction was rolled back."""


class SessionMoved(Fenced):
    """Another process has acquired the session, or is acquiring it. This process neither runs it nor writes its records.

    The new owner may accept a pending message: send it there again with the same `message_id`.
    """

    def __init__(self, agent: str, session_id: str) -> None:
        self.agent = agent
        """Name of the session's agent."""
        self.session_id = session_id
        """Id of the session; `open_session` on the new owner opens it."""
        self.message_id = ""
        """Id of the message that was being sent, to send again; empty if no message was being sent."""
        self.is_written = False
        """True if the pending write reached the journal, so that the new owner reads it."""
        super().__init__(
            f"session {shown(session_id)} of agent {shown(agent)} moved to another process: call agent.open_session() "
            "there, or on any node of its cluster, and send unanswered messages again with the same message_id"
        )


class FeedLagged(ActgentError):
    """A feed reader was too slow and lost records. Its next read returns new records."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        super().__init__(
            f"the feed reader was too slow, and {counted(lost, 'batch of records was', 'batches of records were')} dropped: "
            "get them with read() after the last cursor; read faster, or raise capacity="
        )


class JournalError(ActgentError):
    """The journal could not execute an operation. Committed records are not affected."""


class JournalFull(JournalError):
    """The storage is full. Nothing was written; the commit can be retried when there is space."""


class JournalFailed(JournalError):
    """The disk or the database server failed. The transaction is written completely or not at all."""


class JournalSlow(JournalFailed):
    """The storage did not respond before the timeout.

    The write continues in the background. It is committed before every later write, or not at all.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        super().__init__(
            f"the journal's storage has not responded within {timeout_seconds:g} s: check its disk or its server, and try again"
        )


class JournalDamaged(JournalError):
    """Stored records are corrupt, and none of them is used. Other sessions are not affected."""

    def __init__(self, reason: str, *, session_id: str | None = None, record: int | None = None) -> None:
        self.session_id = session_id
        """Id of the damaged session; None if the whole journal is damaged."""
        self.record = record
        """Number of the first corrupt record, from 1; None if unknown."""
        session = f"session {quoted(session_id)} in the journal" if session_id is not None else "the journal"
        place = "" if record is None else f" at record {record}"
        super().__init__(f"{session} is damaged{place}: {reason}")


class JournalKeyError(JournalError):
    """An encrypted record cannot be decrypted with the keys in the environment."""

    def __init__(self, key_id: str, *, is_there: bool = False) -> None:
        self.key_id = key_id
        self.is_there = is_there
        """True if a key with this id exists, but does not decrypt the record: the key differs, or the record was altered."""
        says = (
            f"the key {key_id!r} of ACTGENT_JOURNAL_KEYS does not decrypt a record that names it: it is another key, or the "
            "record was altered"
            if is_there
            else f"a record is encrypted with the key {key_id!r}: add it to ACTGENT_JOURNAL_KEYS"
        )
        super().__init__(says)


class JournalVersion(JournalError):
    """Another version of actgent wrote the journal: a newer version, or an older one that is opened read-only.

    Nothing was changed.
    """

    def __init__(self, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        advice = (
            "use the actgent that wrote it, or a newer one"
            if found > supported
            else "to read it without writing, start its agents once with this actgent, or read a copy of it"
        )
        super().__init__(
            f"the journal has schema version {found}, this actgent supports versions up to {supported}: {advice}"
        )


class MemoryNotFound(UsageError, LookupError):
    """The owner has no long-term memory with this id, and no shared memory has it.

    Memories of other owners count as missing.
    """

    def __init__(self, memory_id: str) -> None:
        self.memory_id = memory_id
        super().__init__(
            f"memory {quoted(memory_id)} does not exist: recall() and page() return the ids of existing memories"
        )


class MemoryReplaced(UsageError):
    """The memory to update has already been replaced by a newer memory, whose id is `by`."""

    def __init__(self, memory_id: str, by: str) -> None:
        self.memory_id = memory_id
        self.by = by
        super().__init__(
            f"the memory {quoted(memory_id)} was already replaced by {quoted(by)}: update that one"
        )


class MemoriesFull(ActgentError):
    """The owner has reached the capacity of long-term memories, and all of them are pinned. Nothing was written."""

    def __init__(self, owner: str, capacity: int) -> None:
        self.owner = owner
        self.capacity = capacity
        super().__init__(
            f"the owner {quoted(owner)} has {counted(capacity, 'memory', 'memories')}, and all are pinned: forget some, pin fewer, "
            "or raise LongTermMemory(capacity=...)"
        )


class MemoriesFailed(ActgentError):
    """The storage of long-term memories failed: the disk, the file, or the database server.

    Confirmed writes are safe. A failed call wrote nothing, unless the connection was lost during the commit.
    Retry it with the same `key`, which executes it at most once.
    """


class DatabaseFailed(ActgentError):
    """The database of an agent is closed, failed, or rejected a statement; the text includes the message of the database.

    The transaction was rolled back, unless the connection was lost during the commit. Retry it with the same
    `key`, which executes it at most once.
    """


class WireError(ActgentError):
    """Serialized data cannot be decoded by this version of actgent; a newer version may be able to."""


class ThreadsStillRunning(ActgentError):
    """Sync functions still run in threads after the agent's block exited.

    Python cannot stop a thread, so the text names the functions that their author has to fix.
    """

    def __init__(self, names: Sequence[str], grace: float) -> None:
        self.names = tuple(names)
        super().__init__(
            f"{counted(len(self.names), 'thread')} still running {grace:g} s after the agent stopped: {', '.join(self.names)}; "
            "make these tools async, or have them check a deadline"
        )


class HandlerFailed(ActgentError):
    """A session handler raised or exceeded its timeout; the exception is the `__cause__`."""

    def __init__(self, handler: str, reason: str) -> None:
        self.handler = handler
        self.reason = reason
        super().__init__(f"handler {handler} failed: {reason}")


class GuardrailTripped(ActgentError):
    """A guard of the agent rejected a message or an answer: see `Agent.guard`."""

    def __init__(self, guard: str, reason: str) -> None:
        self.guard = guard
        """Name of the guard function."""
        self.reason = reason
        super().__init__(f"the guard {guard} rejected it: {reason}")


class RemoteError(ActgentError):
    """The server returned an error for which actgent has no more precise class."""

    def __init__(self, message: str, *, kind: str = "", status: int | None = None) -> None:
        self.kind = kind
        """Error code of the server; empty if unknown."""
        self.status = status
        """HTTP status; None without a response."""
        super().__init__(f"the server rejected the request ({kind}): {message}" if kind else message)


class PermissionDenied(RemoteError):
    """The server rejects the token, or the token lacks the permission for this request."""


class ServerUnreachable(RemoteError):
    """The server did not respond within the retry timeout. A message with an id can be sent again safely."""

    def __init__(self, reason: str, *, was_sent: bool = False) -> None:
        self.was_sent = was_sent
        """True if the server may have executed the request."""
        super().__init__(
            f"the server cannot be reached ({reason}): check that it runs, and its address; retry_timeout= of connect() is "
            "the time that a client keeps trying"
        )


class UserCodeExit(ActgentError):
    """A tool, model, handler or rule raised a `BaseException` that is no `Exception`, e.g. `SystemExit`.

    The caller handles it as an ordinary failure, because only the program itself may exit the program. The
    original exception is the `__cause__`. Exceptions whose class redefines methods that Python and trio need,
    such as `with_traceback`, are also replaced; only their text is kept.
    """

    def __init__(self, kind: str, *, redefined: str = "", words: str = "") -> None:
        self.kind = kind
        """Class name of the original exception."""
        self.redefined = redefined
        """Name of the redefined method; empty if the original is no `Exception`."""
        why = f"whose class redefines {redefined}" if redefined else "which is not a subclass of Exception"
        detail = f" ({words})" if words else ""
        super().__init__(f"{kind} was raised{detail}, {why}: it is handled as an ordinary failure")


class Interrupted(ActgentError):
    """The turn was stopped by `Session.interrupt` or an URGENT message."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"interrupted: {reason}")


class Stopped(ActgentError):
    """The `async with` block of the agent exited before the message was processed."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        super().__init__(f"agent {quoted(agent)} stopped before this message was answered")


class TooManySchedules(ActgentError):
    """The session has reached its maximum number of schedules. No schedule was added."""

    def __init__(self, session_id: str, limit: int) -> None:
        self.session_id = session_id
        self.limit = limit
        super().__init__(
            f"session {quoted(session_id)} has {counted(limit, 'schedule')}, which is the maximum: remove some"
        )


class LimitReached(ActgentError):
    """A turn or session reached a usage limit, counting the usage of the agents that it called."""

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
        """Description of the limit, e.g. `model calls`."""
        self.value = value
        self.field = field
        """Argument of `Limits` that sets the limit."""
        self.argument = argument
        """Argument that sets the limit, if it is not part of `limits=`; otherwise empty."""
        self.used = dict(used or {})
        """Usage so far of every counted resource: `{"model_calls": 5, "tokens": 1200}`."""
        self.reserved = reserved
        """Amount of the limited resource that running calls have reserved."""
        self.estimated = estimated
        """Estimated minimum of the limited resource that the next call needs; 0 if no estimate caused the error."""
        self.agent = agent
        self.session_id = session_id
        """Id of the session that has the limit; a descendant session may have reached it."""
        self.is_session = is_session
        """True if the limit covers the whole session (`create_session(limits=...)`), False if it covers one turn."""
        self.owner = owner
        """Owner whose quota is exhausted, over all sessions; empty if the limit is no quota."""
        self.period = period
        """Period of the quota: `day` or `month`; empty if the limit is no quota."""
        self.is_call = is_call
        """True if the limit was set for this turn alone, e.g. by `run(limits=...)`."""
        scope = "session" if is_session else "turn"
        spent = ", ".join(
            _format_amount(amount, name.replace("_", " ")) for name, amount in self.used.items()
        )
        if reserved:
            spent = f"{spent or 'nothing'}; reserved by running calls: {_number(reserved)}"
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
                f"it is reset with the next {period}; raise Quotas({period}=Limits({field}=...)) if that is too low"
            )
            return
        whose = (
            f" of {scope + ' ' + quoted(session_id) + ' of ' if is_session else ''}agent {quoted(agent)}"
            if agent
            else ""
        )
        super().__init__(
            f"the {scope} reached its limit of {_number(value)} {limit}"
            f"{spent}: raise {remedy}{whose} if that is too low"
        )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _format_amount(value: float, unit: str) -> str:
    return f"{_number(value)} {unit.removesuffix('s') if value == 1 else unit}"


class ContextOverflow(ActgentError):
    """The required parts of a request exceed the context budget. The request was not sent.

    The session stays usable: from the next message on, a note replaces the parts that were too long.
    """

    def __init__(
        self, text: str, *, parts: Sequence[tuple[str, int]] = (), tokens: int = 0, budget: int = 0
    ) -> None:
        super().__init__(text)
        self.parts = tuple(parts)
        """The largest parts of the request: name and estimated tokens of each."""
        self.tokens = tokens
        """Estimated tokens of the whole request."""
        self.budget = budget


class ModelError(ActgentError):
    """A model call failed.

    `retryable` is True if a retry can succeed. `status` is the HTTP status, if any, and `code` the provider's
    error code. If the model client raised an exception, it is the `__cause__`.
    """

    retryable = False
    client_error: str = ""
    """Class name of the exception that the client library of the model raised; empty for errors of the provider."""

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
    """The provider rejected the request itself (400, 404, 413, 422). A retry cannot succeed."""


class UnsupportedPart(BadRequest):
    """The model client cannot send a message part, e.g. an image, a file or a newer content block."""


class NotAuthorized(ModelError):
    """The provider rejected the API key (401), or the key may not use this model (403)."""


class QuotaExhausted(ModelError):
    """The account has no credit or quota left; its owner has to change that."""


class RateLimited(ModelError):
    """Too many requests or tokens (429). `retry_after` is the provider's requested delay in seconds, or None."""

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


class StreamInterrupted(ModelError):
    """The answer is incomplete or violates the provider's API. The whole answer is discarded."""

    retryable = True


class AnswerError(ActgentError):
    """The model's answer cannot be used; `raw` is its text."""

    def __init__(self, reason: str, raw: str = "") -> None:
        self.reason = reason
        self.raw = raw
        super().__init__(reason)


class ParseError(AnswerError):
    """The answer is not in the format of the protocol. The model gets the reason and tries again."""


class EmptyAnswer(AnswerError):
    """The answer has neither text nor tool calls."""


class TruncatedAnswer(AnswerError):
    """The answer was cut at the token limit: raise `max_tokens`, or ask for less."""


class Refusal(AnswerError):
    """The model declined to answer."""


class ContentFiltered(AnswerError):
    """The provider's content filter removed the answer."""


class ToolError(ActgentError):
    """A tool call failed. The model reads the text of an error that a tool raises."""


class ApprovalRequired(ToolError):
    """A tool's question to a human, raised inside the tool. The session is suspended until it is answered.

    The decision becomes the result of the tool call.

    Args:
        question: Question to show.
        form: JSON Schema, or `Field`s of `actgent.forms`, of the data that a `Respond` answer may carry.
        timeout: Seconds until the question expires; None waits without limit.
        again: If True, an approved call runs once more with the decision as `ToolContext.approval`.
        risk: `low`, `medium`, `high` or `critical`; empty if not rated.
        state: State that the journal keeps with the question; the next run finds it in `FormAnswer.state`.
    """

    def __init__(
        self,
        question: str,
        *,
        form: object = None,
        timeout: float | None = None,
        again: bool = False,
        risk: str = "",
        state: str = "",
    ) -> None:
        self.question = question
        self.form = form
        self.risk = risk
        self.state = state
        self.timeout = timeout
        self.again = again
        self.sources: Mapping[str, str] | None = None
        super().__init__(f"a human decision is required, but this call cannot be suspended: {question}")


class ToolNotFound(ToolError):
    """The model called a tool that does not exist or that the agent may not use."""

    def __init__(self, name: str, available: Sequence[str] = (), lost: Sequence[str] = ()) -> None:
        self.name = name
        known = f"; existing tools: {', '.join(sorted(available)[:20])}" if available else ""
        away = (
            f"; tools of {', '.join(map(shown, sorted(lost)[:20]))} are not available at the moment"
            if lost
            else ""
        )
        super().__init__(f"tool {quoted(name)} not found{known}{away}")


class ToolsetUnavailable(ToolError):
    """The toolset of the tool is not connected. The call did not run."""

    def __init__(self, toolset: str, reason: str) -> None:
        self.toolset = toolset
        self.reason = reason
        super().__init__(
            f"tools of {shown(toolset)} are not available: {reason}; try again later, or continue without them"
        )


class AddressBlocked(ToolError):
    """A tool tried to connect to an address that is not public and is not explicitly allowed."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(
            f"the host {quoted(host)} cannot be reached from here: its address is not public ({reason})"
        )


class HTTPToolError(ToolError):
    """An HTTP API returned an error or did not respond; the text includes the beginning of the response."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(reason)


class InvalidArguments(ToolError):
    """The arguments of a tool call do not fit the tool's schema; the text names the position."""


class InvalidToolResult(ToolError):
    """A value cannot be encoded as JSON, such as a state change or a coroutine that a tool did not await.

    Other tool results that JSON cannot express are no error: the model reads `str()` of the value.
    """


class OutcomeUnknown(ToolError):
    """A call may or may not have taken effect. Raised in a tool, it sets the result's status to `outcome_unknown`.

    If the tool's effect is `pure` or `idempotent`, it counts as an ordinary error, and the model may repeat
    the call.
    """


class ThreadPoolExhausted(ToolError):
    """A sync function did not start: no thread became free in time, or too many threads of its agent hang."""


class ToolTimeout(ToolError):
    """The tool exceeded its timeout."""

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
    (GuardrailTripped, "guard"),
    (Refusal, "refusal"),
    (ContentFiltered, "filter"),
    (TruncatedAnswer, "length"),
    (EmptyAnswer, "empty"),
    (Interrupted, "interrupted"),
    (DeadlineExceeded, "deadline"),
    (Stopped, "stopped"),
    (SessionClosed, "stopped"),
    (NotRunning, "stopped"),
    (DepsMissing, "deps"),
    (JournalError, "journal"),
    (SessionMoved, "moved"),
    (Fenced, "journal"),
)
"""`Failure.kind` of each exception class; the first matching row counts. Other classes get the default of `kind_of`."""


def kind_of(error: Exception, otherwise: str = "internal") -> str:
    """Return the failure kind (`Failure.kind`) of an exception, or `otherwise` if its class is not in `KINDS`."""
    return _kind_of_class(type(error)) or otherwise  # type: ignore[arg-type]  # mypy does not know that classes are hashable


@functools.lru_cache(maxsize=256)
def _kind_of_class(cls: type[Exception]) -> str | None:
    return next((kind for known, kind in KINDS if issubclass(cls, known)), None)
