"""Which action may follow which on the way to a goal.

    initial ──plan──► planning ──execute──► executing ──summarize──► summarizing ──evaluate──► evaluating
                         ▲                    │  ▲ └────────evaluate─────────────────────────►  │
                         └───plan (a failure)─┘  └────────────────execute────────────────────── │
                         └────────────────────────plan──────────────────────────────────────────┘

An action is allowed where the table names it and no rule refuses it. The rules look at what was found, so that
nothing is summarized or judged that is not there. A summary is always followed by an evaluation. An evaluation
that finds the goal achieved ends the turn, so the table says only what follows one that does not.
"""

from collections.abc import Mapping

from .progress import Phase, Progress

TRANSITIONS: Mapping[Phase, tuple[str, ...]] = {
    "initial": ("plan",),
    "planning": ("execute", "summarize"),
    "executing": ("execute", "summarize", "evaluate", "plan"),
    "summarizing": ("evaluate",),
    "evaluating": ("plan", "execute"),
}
LEADS_TO: Mapping[str, Phase] = {
    "plan": "planning",
    "execute": "executing",
    "summarize": "summarizing",
    "evaluate": "evaluating",
}
OPEN_PHASES: tuple[Phase, ...] = ("planning", "executing", "evaluating")
"""Where actions of one's own may be chosen."""
ENOUGH = 2
"""Results that can be judged without a summary."""


def refusal(action: str, progress: Progress, *, has_tools: bool) -> str | None:
    """Why an action may not come next, None if it may."""
    if action not in TRANSITIONS.get(progress.phase, ()):
        return f"{action} cannot follow here"
    return _lacking(action, progress, has_tools=has_tools)


def allowed(progress: Progress, *, has_tools: bool) -> list[str]:
    """The actions that may come next, in the table's order."""
    row = TRANSITIONS.get(progress.phase, ())
    return [action for action in row if _lacking(action, progress, has_tools=has_tools) is None]


def _lacking(action: str, progress: Progress, *, has_tools: bool) -> str | None:
    """Return what an action needs and is not there; without tools, what the model knows is all there can be."""
    match action:
        case "plan" if progress.phase == "executing" and not progress.has_failed:
            return "the plan stays until a tool fails or an evaluation finds something missing"
        case "execute" if not has_tools:
            return "there are no tools"
        case "summarize" if has_tools and progress.phase == "planning":
            return "the plan has to be carried out first"
        case "summarize" if has_tools and not progress.found:
            return "nothing was found yet that could be summarized"
        case "evaluate" if not progress.summary and progress.found < ENOUGH:
            return f"an evaluation needs a summary, or at least {ENOUGH} results"
    return None
