"""How far a goal has come: plain data in the session's state, brought up to date from the record.

What a protocol reads itself it writes down at once. Native tool calls are read by the core, so what came of
them is taken from the record when the protocol is asked next: `absorb` reads on from where it was last.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.messages import Message, ToolCall, ToolResult
from actgent.protocols.base import View

Phase = Literal["initial", "planning", "executing", "summarizing", "evaluating", "finalizing", "ended"]
Status = Literal[
    "",
    "completed",
    "completed_with_formatting",
    "completed_without_formatting",
    "completed_with_summary_fallback",
    "incomplete",
]
"""How a goal ended; empty while it goes on. Only `Progress.achieved` says whether it was reached."""
WHOLE: tuple[Status, ...] = ("completed", "completed_with_formatting")
"""Those that leave nothing to be told beside the answer."""

STATE_KEY = "_goal"
"""Where the session's state holds the progress. Tools with `(state, args)` cannot write keys that begin with `_`."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_KEPT_ACTIONS = 4
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
    tries: int = 0
    """Final answers that did not have the wanted form."""
    achieved: bool = False
    """Set by an evaluation, and by nothing else."""
    status: Status = ""
    error: str | None = None
    iterations: int = 0
    """Model calls when it ended, at most those that it was allowed."""

    def add_action(self, action: str) -> None:
        """Remember what is done, the last actions only."""
        self.actions = (*self.actions, action)[-_KEPT_ACTIONS:]


_DEFAULTS = [(field.name, field.default) for field in attrs.fields(Progress)]


def progress_in(state: Mapping[str, Any]) -> Progress | None:
    """The progress in a session's state, None before its first goal."""
    kept = state.get(STATE_KEY)
    return None if kept is None else Progress(**kept)


def progress_of(view: View) -> Progress:
    """The progress of this turn's goal, the record's last results taken in."""
    turn = view.message.correlation_id or view.message.id
    kept = view.state.get(STATE_KEY)
    progress = Progress(**kept) if kept is not None and kept["turn"] == turn else _begun(view, turn)
    record = view.record
    # What is being read now was asked for at this very place, and has to be read from there.
    absorb(progress, record, end=len(record) - (record[-1].sender.kind == "assistant"))
    return progress


def kept(progress: Progress) -> tuple[str, Mapping[str, Any]]:
    """The change of state that keeps a progress; what has its default is left out, since stores copy."""
    return STATE_KEY, {
        name: value for name, default in _DEFAULTS if (value := getattr(progress, name)) != default
    }


def _begun(view: View, turn: str) -> Progress:
    places = range(len(view.record) - 1, -1, -1)
    start = next((place for place in places if view.record[place].id == turn), len(view.record) - 1)
    return Progress(turn=turn, goal=view.record[start].text, start=start, mark=start + 1)


# --- what the record tells -------------------------------------------------------------------


def absorb(progress: Progress, record: Sequence[Message], *, end: int) -> None:
    """Take in the answers and results that the record holds up to `end` since it was last read."""
    for message in record[progress.mark : end]:
        if message.sender.kind == "tool":
            _absorb_results(progress, message.tool_results)
        elif message.sender.kind == "assistant":
            progress.calls += 1
            for call in message.tool_calls:
                progress.add_action(signature(call))
    progress.mark = max(progress.mark, end)


def _absorb_results(progress: Progress, results: Sequence[ToolResult]) -> None:
    progress.has_failed = False
    for result in results:
        if result.error is not None:
            progress.has_failed = True
            continue
        if result.tool_name not in progress.used_tools:
            progress.used_tools = (*progress.used_tools, result.tool_name)
        if result.content.strip() not in _EMPTY:
            progress.found += 1
            progress.summary = ""  # it does not tell of what came after it
    if progress.phase != "finalizing":  # what is achieved stays to be said
        progress.phase, progress.asked = "executing", ""


def results_of(progress: Progress, record: Sequence[Message]) -> list[ToolResult]:
    """All tool results of the goal's turn, oldest first."""
    return [result for message in record[progress.start :] for result in message.tool_results]


# --- going in circles ------------------------------------------------------------------------


def signature(call: ToolCall) -> str:
    """A tool call as an action that can be compared with others."""
    return f"execute {call.name} {_encode(call.arguments)}"


def detect_action_loop(recent: Sequence[str], max_recent: int = 3) -> bool:
    """Return True if the last actions go in circles: the same twice in a row, or two in turn, as in a, b, a, b.

    Only the last `max_recent` + 1 actions count.
    """
    last = list(recent[-(max_recent + 1) :])
    if len(last) >= 2 and last[-1] == last[-2]:  # noqa: PLR2004 - a repetition takes two
        return True
    return len(last) >= 4 and last[-4:-2] == last[-2:]  # noqa: PLR2004 - an alternation takes four
