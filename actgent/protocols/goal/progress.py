"""How far a goal has come: plain data in the session's state, brought up to date from the record.

What a protocol reads itself it writes down at once. Native tool calls are read by the core, so what came of
them is taken from the record when the protocol is asked next: `absorb` reads on from where it was last.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.errors import ParseError
from actgent.messages import Message, ToolCall, ToolResult
from actgent.protocols.base import View
from actgent.support.strict_json import loads

from .tasks import RUN_TASKS, tasks_told

Phase = Literal["initial", "planning", "executing", "summarizing", "evaluating", "finalizing", "ended"]
Status = Literal[
    "",
    "completed",
    "completed_with_formatting",
    "completed_without_formatting",
    "completed_with_summary_fallback",
    "incomplete",
    "error",
    "suspended",
]
"""How a goal ended; empty while it is worked on. The protocol itself never ends with `error` or `suspended`: the first is a turn
that failed, the second one that waits for an approval. Only `Progress.achieved` says whether the goal was achieved."""
WHOLE: tuple[Status, ...] = ("completed", "completed_with_formatting")
"""Those that leave nothing to be told beside the answer."""

STATE_KEY = "_goal"
"""Where the session's state holds the progress. Tools with `(state, args)` cannot write keys that begin with `_`."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_KEPT_ACTIONS = 4
_KEPT_DIGESTS = 48
MAX_STALLED = 6
"""Decisions in a row that may bring nothing new."""
_EMPTY = ("", "null", "[]", "{}")
"""Results that hold nothing."""


@attrs.define(kw_only=True, on_setattr=None)
class Progress:
    """One goal of a session; every field is plain data. Each reading makes a fresh one, which its reader may change.

    What a field holds is never changed in place: earlier states of the session hold it too.
    """

    turn: str
    """The id that the messages of its turn share."""
    goal: str
    start: int
    """The place of the user's message in the record."""
    mark: int
    """How far the record is read."""
    calls: int = 0
    """Answers of the model before the one that is asked for now, or read."""
    phase: Phase = "initial"
    asked: str = ""
    """The action that was chosen without its params, so that nothing else is asked for."""
    plan: Sequence[str] = ()
    summary: str = ""
    """Of all that was found; empty if something came after it."""
    evaluation: Mapping[str, Any] | None = None
    unmet: int = 0
    """Evaluations in a row that found the goal not achieved."""
    used_tools: Sequence[str] = ()
    found: int = 0
    """Results that hold something."""
    has_failed: bool = False
    """True if one of the last tools failed."""
    actions: Sequence[str] = ()
    """The last actions, oldest first, each with what it was done with."""
    course: str = ""
    """Digests of the last calls, and of what they brought; then a dot for each decision since that brought nothing new."""
    tries: int = 0
    """Final answers that did not have the wanted form."""
    achieved: bool = False
    """Set by an evaluation, and by nothing else."""
    status: Status = ""
    error: str | None = None

    @property
    def iterations(self) -> int:
        """Model calls up to now, or when it ended."""
        return self.calls + (self.phase == "ended")

    @property
    def stalled(self) -> int:
        """Decisions in a row that brought nothing new."""
        return self.course.count(".")

    def add_action(self, action: str) -> None:
        """Remember what is done, the last actions only."""
        self.actions = (*self.actions, action)[-_KEPT_ACTIONS:]

    def add_call(self, call: ToolCall) -> None:
        """Remember a call that is made; what was called before stalls, until something new comes of it."""
        done = signature(call)
        self.add_action(done)
        if not self.take_news(done):
            self.stall()

    def stall(self) -> None:
        """Count a decision that brought nothing new."""
        self.course += "."

    def take_news(self, text: str) -> bool:
        """Remember a call or what came of one; if it was not there before, nothing stalls, and it is True."""
        digest = f"{zlib.crc32(text.encode(errors='replace')):08x} "
        if digest in self.course:
            return False
        # One text, and no list of them: what is in the state is copied at each step.
        self.course = (self.course.rstrip(".") + digest)[-_KEPT_DIGESTS * len(digest) :]
        return True


_DEFAULTS = [(field.name, field.default) for field in attrs.fields(Progress)]


def progress_in(state: Mapping[str, Any]) -> Progress | None:
    """The progress in a session's state, None before its first goal."""
    kept = state.get(STATE_KEY)
    return None if kept is None else _read(kept)


def _read(kept: Mapping[str, Any]) -> Progress:
    try:
        return Progress(**kept)
    except TypeError:  # another version has written it, which knew more
        known = {name for name, _ in _DEFAULTS}
        return Progress(**{name: value for name, value in kept.items() if name in known})


def progress_of(view: View) -> Progress:
    """The progress of this turn's goal, the record's last results taken in."""
    turn = view.message.correlation_id or view.message.id
    kept = view.state.get(STATE_KEY)
    progress = _read(kept) if kept is not None and kept["turn"] == turn else _begun_in(view.record, turn)
    record = view.record
    # What is being read now was asked for at this very place, and has to be read from there.
    absorb(progress, record, end=len(record) - (record[-1].sender.kind == "assistant"))
    return progress


def kept(progress: Progress) -> tuple[str, Mapping[str, Any]]:
    """The change of state that keeps a progress; what has its default is left out, since stores copy."""
    return STATE_KEY, {
        name: value for name, default in _DEFAULTS if (value := getattr(progress, name)) != default
    }


def progress_at_end(
    state: Mapping[str, Any], record: Sequence[Message], *, turn: str, goal: str, any_turn: bool
) -> Progress:
    """Return the progress of a turn that has ended, with the answers and results that the protocol did not read.

    Args:
        state: The session's state.
        record: The session's messages.
        turn: The id of the message that holds the goal.
        goal: The goal as the user wrote it.
        any_turn: True: take the progress in the state, whatever its turn is. A message that was answered together with
            others has no turn of its own.
    """
    progress = progress_in(state)
    if progress is None or not (any_turn or progress.turn == turn):
        start = next((place for place, message in enumerate(record) if message.id == turn), len(record))
        progress = Progress(turn=turn, goal=goal, start=start, mark=min(start + 1, len(record)))
    absorb(progress, record, end=len(record))
    return progress


def _begun_in(record: Sequence[Message], turn: str) -> Progress:
    places = range(len(record) - 1, -1, -1)
    start = next((place for place in places if record[place].id == turn), len(record) - 1)
    return Progress(turn=turn, goal=record[start].text, start=start, mark=start + 1)


# --- what the record tells -------------------------------------------------------------------


def absorb(progress: Progress, record: Sequence[Message], *, end: int) -> None:
    """Take in the answers and results that the record holds up to `end` since it was last read."""
    for message in record[progress.mark : end]:
        if message.sender.kind == "tool":
            _absorb_results(progress, message.tool_results)
        elif message.sender.kind == "assistant":
            progress.calls += progress.phase != "ended"
            for call in message.tool_calls:
                progress.add_call(call)
    progress.mark = max(progress.mark, end)


def _absorb_results(progress: Progress, results: Sequence[ToolResult]) -> None:
    progress.has_failed = False
    for result in results:
        if result.error is not None:
            progress.has_failed = True
            continue
        if result.tool_name == RUN_TASKS:
            _absorb_tasks(progress, result)
        elif result.tool_name not in progress.used_tools:
            progress.used_tools = (*progress.used_tools, result.tool_name)
        if result.content.strip() not in _EMPTY:
            progress.take_news(f"{result.tool_name} {result.content}")
            progress.found += 1
            progress.summary = ""  # it does not tell of what came after it
    if progress.phase != "finalizing":  # what is achieved stays to be said
        progress.phase, progress.asked = "executing", ""


def _absorb_tasks(progress: Progress, result: ToolResult) -> None:
    """Take in whose tools have worked, in the place of what has called them."""
    told = tasks_told(result)
    used = [task["tool"] for task in told if task.get("status") == "completed"]
    progress.used_tools = tuple(dict.fromkeys((*progress.used_tools, *used)))
    progress.has_failed |= len(used) < len(told)


def results_of(progress: Progress, record: Sequence[Message]) -> list[ToolResult]:
    """All tool results of the goal's turn, oldest first."""
    return [result for message in record[progress.start :] for result in message.tool_results]


def goal_view(state: Mapping[str, Any], record: Sequence[Message]) -> dict[str, Any]:
    """What functions of the state are told of the goal, as plain data: `goal`, `results` and `used_tools`.

    `results` are those calls that went well, in their order: `{"tool", "result"}`, results in JSON decoded.
    """
    if not record:
        return {}
    turn = turn_of(record)
    progress = progress_in(state)
    if progress is None or progress.turn != turn:  # native calls run before anything is written down
        progress = _begun_in(record, turn)
    absorb(progress, record, end=len(record))
    good = [result for result in results_of(progress, record) if result.error is None]
    results = [each for result in good for each in _viewed(result)]
    return {"goal": progress.goal, "results": results, "used_tools": list(progress.used_tools)}


def turn_of(record: Sequence[Message]) -> str:
    """The turn that a record's last message belongs to."""
    return record[-1].correlation_id or record[-1].id


def _viewed(result: ToolResult) -> list[dict[str, Any]]:
    """A result, or those of its tasks, as functions of the state see it."""
    if result.tool_name != RUN_TASKS:
        return [{"tool": result.tool_name, "result": _decoded(result.content)}]
    done = [task for task in tasks_told(result) if task.get("status") == "completed"]
    return [{"tool": task["tool"], "result": task["output"]} for task in done]


def _decoded(content: str) -> Any:
    try:
        return loads(content)
    except ParseError:
        return content


# --- going in circles ------------------------------------------------------------------------


def signature(call: ToolCall) -> str:
    """A tool call as an action that can be compared with others."""
    return f"execute {call.name} {_encode(call.arguments)}"


def detect_action_loop(recent_actions: Sequence[str], max_recent: int = 3) -> bool:
    """Return True if the last actions go in circles: the same twice in a row, or two in turn, as in a, b, a, b.

    Only the last `max_recent` + 1 actions count.
    """
    last = list(recent_actions[-(max_recent + 1) :])
    if len(last) >= 2 and last[-1] == last[-2]:  # noqa: PLR2004 - a repetition takes two
        return True
    return len(last) >= 4 and last[-4:-2] == last[-2:]  # noqa: PLR2004 - an alternation takes four
