"""Progress of a goal: plain data in the session's state, updated from the messages.

The protocol stores its own decisions immediately. The core handles native tool calls. At the next pass, `apply_messages` reads the
results of these calls from the messages after the last message that it has read.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.messages import Message, ToolCall, ToolResult
from actgent.protocols.protocol_interface import TurnView
from actgent.support.strict_json import loads_or_text

from .task_plan import RUN_TASKS, tasks_in_result

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
"""Final status of a goal; empty while it is in progress.

`error` means that the turn failed, and `suspended` that it waits for an approval; the protocol itself sets neither. Only
`Progress.achieved` is True if the goal was achieved.
"""
WHOLE: tuple[Status, ...] = ("completed", "completed_with_formatting")
"""Statuses of a goal that was fully achieved. Results with another status get a note about the missing parts."""

STATE_KEY = "_goal"
"""Key of the progress in the session's state. Tools with `(state, args)` cannot write keys that begin with `_`."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_MAX_ACTIONS = 4
_MAX_DIGESTS = 48
MAX_STALLED = 6
"""Maximum number of consecutive decisions without a new result."""
_EMPTY = ("", "null", "[]", "{}")
"""Tool results that are treated as empty."""


@attrs.define(kw_only=True, on_setattr=None)
class Progress:
    """Progress of one goal, as plain data. Each read creates a new object, which the caller may change.

    Field values are replaced, never changed in place, because earlier states of the session share them.
    """

    turn: str
    """Correlation id of the messages in the turn of the goal."""
    goal: str
    """Text of the user's message, which is the goal."""
    start: int
    """Index of the user's message in the session's messages."""
    mark: int
    """Index of the first message of the session that the progress does not include yet."""
    calls: int = 0
    """Number of model answers for the goal before the current answer."""
    phase: Phase = "initial"
    """Phase of the goal loop."""
    asked: str = ""
    """Name of the action that the model chose without parameters, for which the next model call asks.

    Empty if there is no such action.
    """
    plan: Sequence[str] = ()
    """Steps of the current plan."""
    summary: str = ""
    """The model's summary of all tool results; empty if newer results exist."""
    evaluation: Mapping[str, Any] | None = None
    """Parameters of the last evaluation; None before the first."""
    unmet: int = 0
    """Number of consecutive evaluations that found the goal not achieved."""
    used_tools: Sequence[str] = ()
    """Names of the tools that were called with success."""
    found: int = 0
    """Number of tool results so far that are not empty."""
    has_failed: bool = False
    """True if a tool call of the last step failed."""
    actions: Sequence[str] = ()
    """Last actions with their arguments as text, oldest first, for loop detection."""
    course: str = ""
    """Digests of the last tool calls and results, followed by one dot for each later model decision that gave no new result.
    The number of dots shows how long there was no progress.
    """
    tries: int = 0
    """Number of final answers so far that did not fit the `output=` type."""
    achieved: bool = False
    """True if an evaluation found the goal achieved."""
    status: Status = ""
    """How the goal ended; empty while it is in progress."""
    error: str | None = None
    """Reason why the goal ended early; None if it did not."""

    @property
    def iterations(self) -> int:
        """Number of model calls for the goal so far, or until it ended."""
        return self.calls + (self.phase == "ended")

    @property
    def stalled(self) -> int:
        """Number of consecutive decisions without a new result (the stall count)."""
        return self.course.count(".")

    def add_action(self, action: str) -> None:
        """Append an action to the recent actions, in which `detect_action_loop` searches for repetitions."""
        self.actions = (*self.actions, action)[-_MAX_ACTIONS:]

    def add_call(self, call: ToolCall) -> None:
        """Record a tool call. A call identical to an earlier one raises the stall count."""
        text = signature(call)
        self.add_action(text)
        if not self.add_digest(text):
            self.stall()

    def stall(self) -> None:
        """Raise the stall count by one: a decision brought no new result."""
        self.course += "."

    def add_digest(self, text: str) -> bool:
        """Record the digest of a call or result. If it is new, reset the stall count and return True."""
        digest = f"{zlib.crc32(text.encode(errors='replace')):08x} "
        if digest in self.course:
            return False
        # A string instead of a list, because the state is copied at each step.
        self.course = (self.course.rstrip(".") + digest)[-_MAX_DIGESTS * len(digest) :]
        return True


_DEFAULTS = [(field.name, field.default) for field in attrs.fields(Progress)]


def progress_in(state: Mapping[str, Any]) -> Progress | None:
    """Return the goal progress that is stored in a session's state; None before the session's first goal."""
    stored = state.get(STATE_KEY)
    return None if stored is None else _from_data(stored)


def _from_data(stored: Mapping[str, Any]) -> Progress:
    try:
        return Progress(**stored)
    except TypeError:  # a newer version wrote it, with further fields
        known = {name for name, _ in _DEFAULTS}
        return Progress(**{name: value for name, value in stored.items() if name in known})


def progress_of(view: TurnView) -> Progress:
    """Return the progress of the running turn's goal, updated with the last tool results in the messages."""
    turn = view.message.correlation_id or view.message.id
    stored = view.state.get(STATE_KEY)
    is_current = stored is not None and stored["turn"] == turn
    progress = _from_data(stored) if stored is not None and is_current else _new_progress(view.record, turn)
    record = view.record
    # The answer that is being read now is not absorbed: the protocol interprets it after this call.
    apply_messages(progress, record, end=len(record) - (record[-1].sender.kind == "assistant"))
    return progress


def stored_progress(progress: Progress) -> tuple[str, Mapping[str, Any]]:
    """Return the state change `(key, value)` that stores a progress in the session.

    Default values are omitted, because the state is copied at each step.
    """
    return STATE_KEY, {
        name: value for name, default in _DEFAULTS if (value := getattr(progress, name)) != default
    }


def progress_at_end(
    state: Mapping[str, Any], record: Sequence[Message], *, turn: str, goal: str, any_turn: bool
) -> Progress:
    """Return the progress of an ended turn, updated with the answers and results that the protocol did not read.

    Args:
        state: The session's state.
        record: The session's messages.
        turn: Id of the message with the goal.
        goal: The goal as the user wrote it.
        any_turn: True if the progress in the state is used even if it has another turn id. A message that was answered
            together with others has no separate turn.
    """
    progress = progress_in(state)
    if progress is None or not (any_turn or progress.turn == turn):
        start = next((index for index, message in enumerate(record) if message.id == turn), len(record))
        progress = Progress(turn=turn, goal=goal, start=start, mark=min(start + 1, len(record)))
    apply_messages(progress, record, end=len(record))
    return progress


def _new_progress(record: Sequence[Message], turn: str) -> Progress:
    indexes = range(len(record) - 1, -1, -1)
    start = next((index for index in indexes if record[index].id == turn), len(record) - 1)
    return Progress(turn=turn, goal=record[start].text, start=start, mark=start + 1)


# --- progress from messages -------------------------------------------------------------------


def apply_messages(progress: Progress, record: Sequence[Message], *, end: int) -> None:
    """Update the goal progress with the answers and tool results in `record[progress.mark:end]`."""
    for message in record[progress.mark : end]:
        if message.sender.kind == "tool":
            _apply_tool_results(progress, message.tool_results)
        elif message.sender.kind == "assistant":
            progress.calls += progress.phase != "ended"
            for call in message.tool_calls:
                progress.add_call(call)
    progress.mark = max(progress.mark, end)


def _apply_tool_results(progress: Progress, results: Sequence[ToolResult]) -> None:
    progress.has_failed = False
    for result in results:
        if result.error is not None:
            progress.has_failed = True
            continue
        if result.tool_name == RUN_TASKS:
            tasks = tasks_in_result(result)
            used = [task["tool"] for task in tasks if task.get("status") == "completed"]
            progress.used_tools = tuple(dict.fromkeys((*progress.used_tools, *used)))
            progress.has_failed |= len(used) < len(tasks)
        elif result.tool_name not in progress.used_tools:
            progress.used_tools = (*progress.used_tools, result.tool_name)
        if result.content.strip() not in _EMPTY:
            progress.add_digest(f"{result.tool_name} {result.content}")
            progress.found += 1
            progress.summary = ""  # the summary does not cover the new result
    if progress.phase != "finalizing":  # an achieved goal still needs its final answer
        progress.phase, progress.asked = "executing", ""


def results_of(progress: Progress, record: Sequence[Message]) -> list[ToolResult]:
    """Return all tool results of the goal's turn, oldest first."""
    return [result for message in record[progress.start :] for result in message.tool_results]


def goal_view(state: Mapping[str, Any], record: Sequence[Message]) -> dict[str, Any]:
    """Return the goal as plain data for functions of the state: `goal`, `results` and `used_tools`.

    `results` are the successful calls in their order, as `{"tool", "result"}` with decoded JSON results.
    """
    if not record:
        return {}
    turn = turn_of(record)
    progress = progress_in(state)
    if progress is None or progress.turn != turn:  # native calls run before the protocol stores a progress
        progress = _new_progress(record, turn)
    apply_messages(progress, record, end=len(record))
    good = [result for result in results_of(progress, record) if result.error is None]
    results = [each for result in good for each in _result_data(result)]
    return {"goal": progress.goal, "results": results, "used_tools": list(progress.used_tools)}


def turn_of(record: Sequence[Message]) -> str:
    """Return the id of the turn to which the last message belongs."""
    return record[-1].correlation_id or record[-1].id


def _result_data(result: ToolResult) -> list[dict[str, Any]]:
    """Convert a tool result to plain data `{"tool", "result"}`. A result of `run_tasks` gives one item per completed task."""
    if result.tool_name != RUN_TASKS:
        return [{"tool": result.tool_name, "result": loads_or_text(result.content)}]
    done = [task for task in tasks_in_result(result) if task.get("status") == "completed"]
    return [{"tool": task["tool"], "result": task["output"]} for task in done]


# --- loop detection ------------------------------------------------------------------------


def signature(call: ToolCall) -> str:
    """Return a tool call as text, for the comparison with other calls."""
    return f"execute {call.name} {_encode(call.arguments)}"


def detect_action_loop(recent_actions: Sequence[str], max_recent: int = 3) -> bool:
    """Return True if the last actions repeat: the same action twice in a row, or two actions alternating (a, b, a, b).

    Only the last `max_recent` + 1 actions are compared.
    """
    last = list(recent_actions[-(max_recent + 1) :])
    if len(last) >= 2 and last[-1] == last[-2]:  # noqa: PLR2004 - a repetition takes two
        return True
    return len(last) >= 4 and last[-4:-2] == last[-2:]  # noqa: PLR2004 - an alternation takes four
