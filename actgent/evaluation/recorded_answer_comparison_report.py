"""Comparison of recorded answers with the answers of other models and prompts: kinds of difference, figures and the report."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

from actgent.agents.session_replay import AnswerReading, ForkEnd, call_key
from actgent.messages import NO_USAGE, ToolCall, Usage

DECISION_FORMAT = "actgent-decisions 1"
"""Value of `format` in JSON reports."""
DifferenceKind = Literal["same", "words", "calls", "outcome", "failed"]
"""How an answer differs from the recorded one.

`same`: not at all. `words`: only the words of the reply differ. `calls`: both call tools, with other names or arguments.
`outcome`: anything else, e.g. a call in place of a reply, other structured data, or an answer that the agent cannot use.
`failed`: the model gave no answer.
"""
ACCEPTED: Sequence[DifferenceKind] = ("same", "words")
"""Kinds of differences that count as the same decision."""


@attrs.frozen(kw_only=True)
class ComparedDecision:
    """Comparison of a recorded answer with the answer of one variant (model and prompt) to the same request."""

    session_id: str
    """Id of the recorded session."""
    agent: str
    """Name of the session's agent."""
    step: int
    """Number of the journal record with the recorded answer, from 1."""
    variant: str
    """Name of the tested variant, which is a combination of a model and a prompt."""
    recorded: AnswerReading
    """Parsed content of the recorded answer."""
    answered: AnswerReading | None = None
    """Parsed content of the new answer; None if the model failed."""
    error: str = ""
    """Text of the error of the model call; empty if the model answered."""
    end: ForkEnd | None = None
    """How the session continued from the new answer; None if the new answer calls no other tools than the recorded one."""
    is_asked: bool = True
    """True if a model was called for the new answer. False if the recorded answer was used instead."""
    recorded_usage: Usage = NO_USAGE
    """Token usage and cost of the recorded answer."""
    usage: Usage = NO_USAGE
    """Token usage and cost of the new answer."""
    seconds: float = 0.0
    """Duration of the model call in seconds."""

    @property
    def kind(self) -> DifferenceKind:
        """Kind of the difference between the answer and the recorded one; `failed` without an answer."""
        return "failed" if self.answered is None else difference_kind(self.recorded, self.answered)

    @property
    def unrecorded(self) -> tuple[ToolCall, ...]:
        """Tool calls of the fork without a recorded result, which were not run."""
        return () if self.end is None else self.end.unrecorded

    @property
    def text(self) -> str:
        """Description of the difference on one line."""
        if self.answered is None:
            return f"the model failed: {self.error}"
        text = f"{describe_reading(self.answered)} instead of {describe_reading(self.recorded)}"
        return text if self.end is None else f"{text}; {_describe_end(self.end)}"


def difference_kind(recorded: AnswerReading, answered: AnswerReading) -> DifferenceKind:
    """Return the kind of difference between an answer and the recorded answer. The order of calls in an answer is ignored."""
    if (recorded.calls or answered.calls) and not (recorded.error or answered.error):
        if _keys(recorded) == _keys(answered) and recorded.actions == answered.actions:
            return "same"
        return "calls" if recorded.calls and answered.calls else "outcome"
    if (bool(recorded.error), recorded.data, recorded.actions) != (
        bool(answered.error),
        answered.data,
        answered.actions,
    ) or bool(recorded.text) is not bool(answered.text):
        return "outcome"
    is_same = recorded.text.split() == answered.text.split() and recorded.error == answered.error
    return "same" if is_same else "words"


def _keys(reading: AnswerReading) -> list[tuple[str, str]]:
    return sorted(map(call_key, reading.calls))


def describe_reading(reading: AnswerReading) -> str:
    """Describe the parsed content of an answer as text: its calls, actions, data or reply."""
    if reading.error:
        return f"an unusable answer ({reading.error})"
    found = [*map(call_text, reading.calls), *reading.actions]
    if reading.data is not None:
        found.append(f"data {reading.data!r}")
    elif reading.text:
        found.append(f"the reply {reading.text!r}")
    return ", ".join(found) or "no outcome"


def call_text(call: ToolCall) -> str:
    """Format a tool call as text, such as `refund(order=7)`."""
    if isinstance(call.arguments, str):
        return f"{call.name}({call.arguments})"
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _describe_end(end: ForkEnd) -> str:
    if end.unrecorded:
        return f"{', '.join(map(call_text, end.unrecorded))} has no recorded result, and did not run"
    return f"the fork failed: {end.error}" if end.error else f"the fork replied {end.text!r}"


@attrs.frozen(kw_only=True)
class UnreachedDecisions:
    """Recorded decisions of a session that the agent's current code does not reach, so that no model was called."""

    session_id: str
    """Id of the recorded session."""
    agent: str
    """Name of the session's agent."""
    variant: str
    """Name of the tested variant, which is a combination of a model and a prompt."""
    count: int
    """Number of decisions that were not reached."""
    reason: str
    """First difference between the code and the recording, or the error of the replay."""


@attrs.frozen(kw_only=True)
class DecisionFigures:
    """Metrics over the decisions of one variant (model and prompt)."""

    decisions: int
    """Number of recorded decisions, including those that were not reached."""
    counts: Mapping[DifferenceKind, int]
    """Number of answers by the kind of their difference."""
    unreached: int
    """Number of decisions that the agent's current code does not reach."""
    unrecorded: int
    """Number of answers after which the fork ended at a tool call without a recorded result."""
    calls: int
    """Number of model calls, including those of forks."""
    usage: Usage
    """Token usage and cost of the answers, to compare with the recorded usage."""
    fork_usage: Usage
    """Token usage and cost of the model calls in forks."""

    @property
    def rate(self) -> float:
        """Share of the decisions that are the same or differ only in words, from 0 to 1; 1 without decisions."""
        if not self.decisions:
            return 1.0
        return sum(self.counts[kind] for kind in ACCEPTED) / self.decisions


@attrs.frozen(kw_only=True)
class DecisionReport:
    """Report of a comparison: all compared decisions of a set of sessions."""

    decisions: tuple[ComparedDecision, ...]
    """Compared decisions, ordered by session, variant and record."""
    unreached: tuple[UnreachedDecisions, ...]
    """Sessions whose replay ended before their last recorded decision, ordered by session and tested variant."""
    variants: tuple[str, ...]
    """Names of the compared models and prompts."""
    sessions: int
    """Number of compared sessions."""

    def row(self, variant: str) -> DecisionFigures:
        """Return the metrics of one variant, a pair of model and prompt."""
        found = [each for each in self.decisions if each.variant == variant]
        unreached = sum(each.count for each in self.unreached if each.variant == variant)
        kinds = [each.kind for each in found]
        forks = [each.end for each in found if each.end is not None]
        return DecisionFigures(
            decisions=len(found) + unreached,
            counts={kind: kinds.count(kind) for kind in get_args(DifferenceKind)},
            unreached=unreached,
            unrecorded=sum(bool(each.unrecorded) for each in found),
            calls=sum(each.is_asked for each in found) + sum(fork.model_calls for fork in forks),
            usage=_sum(each.usage for each in found),
            fork_usage=_sum(fork.usage for fork in forks),
        )

    @property
    def recorded_usage(self) -> Usage:
        """Token usage and cost of the recorded answers that were compared with the first variant."""
        return _sum(each.recorded_usage for each in self.decisions if each.variant == self.variants[0])

    def meets(self, threshold: float) -> bool:
        """Return True if each variant has decisions, and at least `threshold` of them are the same."""
        rows = [self.row(variant) for variant in self.variants]
        return all(row.decisions > 0 and row.rate >= threshold for row in rows)

    def to_json(self) -> str:
        """Return the report as JSON with the members `format`, `sessions`, `recorded_usage`, `variants`, `decisions` and `unreached`."""
        rows = [(name, self.row(name)) for name in self.variants]
        found = {
            "format": DECISION_FORMAT,
            "sessions": self.sessions,
            "recorded_usage": attrs.asdict(self.recorded_usage),
            "variants": [{"name": name, **attrs.asdict(row), "rate": row.rate} for name, row in rows],
            "decisions": [_decision_row(each) for each in self.decisions],
            "unreached": [attrs.asdict(each) for each in self.unreached],
        }
        return json.dumps(found, ensure_ascii=False, indent=2, default=str)


def _sum(usages: Iterable[Usage]) -> Usage:
    return sum(usages, NO_USAGE)


def _decision_row(decision: ComparedDecision) -> dict[str, Any]:
    end = decision.end
    return {
        "session": decision.session_id,
        "agent": decision.agent,
        "record": decision.step,
        "variant": decision.variant,
        "difference": decision.kind,
        "recorded": _reading_row(decision.recorded),
        "answered": None if decision.answered is None else _reading_row(decision.answered),
        "error": decision.error,
        "fork": None
        if end is None
        else {
            "calls": list(map(_call_row, end.calls)),
            "unrecorded": list(map(_call_row, end.unrecorded)),
            "text": end.text,
            "error": end.error,
            "model_calls": end.model_calls,
            "usage": attrs.asdict(end.usage),
        },
        "usage": attrs.asdict(decision.usage),
        "seconds": decision.seconds,
    }


def _reading_row(reading: AnswerReading) -> dict[str, Any]:
    return {
        "calls": list(map(_call_row, reading.calls)),
        "text": reading.text,
        "data": reading.data,
        "actions": reading.actions,
        "error": reading.error,
    }


def _call_row(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}
