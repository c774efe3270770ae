"""Settings of a simulation, and the plan that a seed draws from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar, get_args

import attrs

from .seeded_choices import Choices
from .simulated_storage import JournalKind

T = TypeVar("T")
FaultKind = Literal[
    "kill",
    "stop",
    "restart",
    "model",
    "tool",
    "journal",
    "slow",
    "cancel",
    "interrupt",
    "close",
    "erase",
    "repeat",
    "priority",
    "schedule",
    "task",
    "fork",
    "limit",
    "memory",
    "full",
    "concurrency",
    "handler",
    "downtime",
    "approver",
    "order",
    "annotate",
]
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
"""Kinds of faults that a seed may have."""
RARE_FAULTS: frozenset[FaultKind] = frozenset(["restart", "slow", "close", "erase", "limit", "fork", "full"])
"""Kinds that a third of the seeds have, because they end or slow down other work. Half of the seeds have each other kind."""
ON_REQUEST: frozenset[FaultKind] = frozenset(["approver", "order", "annotate"])
"""Kinds that a seed has only if the settings request them."""
MANY = 1024
"""Number of idle sessions in memory that no seed exceeds."""
MAX_SESSIONS, MAX_MESSAGES = 3, 3
LIVES = (1, 2, 3, 4, 4, 5)
"""Numbers of simulated processes of a seed. Most deaths are in seeds with several simulated processes."""
DEFAULT_MESSAGE = "message {number}"
_CHANCES: dict[FaultKind, tuple[float, ...]] = {"model": (0.25,), "journal": (0.2,), "slow": (0.05,)}
"""Probabilities of an event of a kind, of which a seed that has this kind draws one."""
_OTHER_CHANCES = (0.3, 0.3, 0.8)
"""The same for other kinds. A seed with the high probability has many events of this kind at the same time."""
_CALLS: tuple[FaultKind, ...] = (
    "interrupt",
    "close",
    "erase",
    "schedule",
    "task",
    "fork",
    "restart",
    "annotate",
)
"""Kinds of faults that are calls of callers."""
_ONE_AGENT = (True, False, False)
"""True in the seeds in which one agent has all sessions."""


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of a simulation, from the options of `actgent simulate`."""

    program: Path
    """Python file of the agents."""
    faults: frozenset[FaultKind] = frozenset(FAULTS)
    """Kinds of faults that may happen."""
    always: frozenset[FaultKind] = frozenset()
    """Kinds of faults that each seed has. Other kinds are drawn by each seed."""
    journal: JournalKind = "memory"
    sessions: int = MAX_SESSIONS
    """Maximum number of sessions of a seed."""
    messages: tuple[str, ...] = ()
    """Texts that callers send; empty for `message 1`, `message 2`, and so on."""
    uses_own_models: bool = False
    """True if the models of the program are used instead of random ones."""


@attrs.frozen
class SeedPlan:
    """Plan of one seed: its messages, limits, and probabilities of events.

    Each seed has only some kinds of faults, so that a rare fault is not hidden by frequent ones.
    """

    messages: dict[str, str]
    """Text of each message by message id. The id contains the number of the session and the caller."""
    sessions: int
    lives: int
    chance: dict[FaultKind, float]
    """Probability of an event by kind of fault; 0 for kinds that the seed does not have."""
    loaded: int
    """Number of idle sessions that stay in memory."""
    limits: dict[str, int]
    """Limit of model calls of a session, by session id."""
    snapshot_records: int
    """Number of new records after which a session gets a snapshot."""
    inbox: int
    """Maximum number of queued messages per session; 0 uses the value that the program sets."""
    only_agent: float | None
    """Position in the list of agents, from 0 to 1, of the agent to which all sessions belong.
    None if the sessions belong to different agents.
    """
    second_call: float
    """Probability of a second tool call in an answer of a model that calls a tool."""

    @property
    def evicts(self) -> bool:
        """True if this seed may evict idle sessions from memory."""
        return self.loaded < MANY

    def agent_of(self, number: int, agents: Sequence[T]) -> T:
        """Return the agent to which the simulated session with this number belongs."""
        if self.only_agent is not None:
            return agents[int(self.only_agent * len(agents))]
        return agents[number % len(agents)]


def call_kinds(plan: SeedPlan) -> tuple[str, ...]:
    """Return the kinds of calls that the callers of a seed make."""
    return ("message", "decision", *[kind for kind in _CALLS if plan.chance[kind]])


def draw_plan(choices: Choices, settings: Settings, usual_snapshot_records: int) -> SeedPlan:
    """Draw the plan of a seed: the messages of callers, the probabilities of faults, and limits.

    Args:
        choices: Choices of the seed.
        settings: Program and kinds of faults.
        usual_snapshot_records: Number of new records after which a session usually gets a snapshot.
    """
    chance: dict[FaultKind, float] = {}
    for kind in FAULTS:
        options = (True, False, False) if kind in RARE_FAULTS else (True, False)
        is_drawn = kind not in ON_REQUEST and choices.pick(f"has {kind}", options)
        is_on = is_drawn or kind in settings.always
        is_on = is_on and kind in settings.faults
        chance[kind] = choices.pick(f"chance of {kind}", _CHANCES.get(kind, _OTHER_CHANCES)) if is_on else 0.0
    if "kill" in settings.faults:
        chance["kill"] = 0.9
    sessions = choices.number("sessions", 1, settings.sessions)
    has_memory = bool(chance["memory"])
    return SeedPlan(
        messages=_draw_messages(choices, sessions, settings.messages),
        sessions=sessions,
        lives=choices.pick("lives", LIVES),
        chance=chance,
        loaded=choices.pick("loaded sessions", (1, 2, MANY)) if has_memory else MANY,
        limits={
            f"s{number}": choices.pick("limit", (1, 2, 4))
            for number in range(sessions)
            if choices.happens(f"limit of s{number}", chance["limit"])
        },
        snapshot_records=choices.pick("snapshot records", (3, 12, usual_snapshot_records))
        if has_memory
        else usual_snapshot_records,
        inbox=choices.pick("inbox", (1, 1, 2)) if chance["full"] else 0,
        only_agent=choices.fraction("only agent") if choices.pick("one agent", _ONE_AGENT) else None,
        second_call=choices.pick("chance of a second call", (0.4, 0.4, 0.9)),
    )


def _draw_messages(choices: Choices, sessions: int, texts: tuple[str, ...]) -> dict[str, str]:
    """Draw the messages of two callers to each session, by message id."""
    messages = dict[str, str]()
    for session in range(sessions):
        for caller in range(2):
            for number in range(choices.number("messages", 1 - caller, MAX_MESSAGES)):
                if choices.happens(f"message {number} of caller {caller} to s{session}", 1.0):
                    text = (
                        choices.pick("text", texts)
                        if texts
                        else DEFAULT_MESSAGE.format(number=len(messages) + 1)
                    )
                    messages[f"s{session}-{caller}{number}"] = text
    return messages
