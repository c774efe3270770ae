"""The state machine of a goal: which actions are offered in each phase, and which are rejected.

    initial ──plan──► planning ──execute──► executing ──summarize──► summarizing ──evaluate──► evaluating
       │                 ▲                    ▲  ▲ └────────evaluate─────────────────────────►  │
       │                 └───plan (a failure)─┘  └────────────────execute────────────────────── │
       └───execute────────────────────────────┘                                                 │
                         ▲────────────────────────plan──────────────────────────────────────────┘

The table lists the actions that a model is offered. Another decision is accepted too: an action is rejected only if it
has nothing to work with, e.g. a summary without results. An evaluation that finds the goal achieved ends the turn, so
the table covers only evaluations that do not.
"""

from collections.abc import Mapping

from .goal_progress import Phase, Progress

TRANSITIONS: Mapping[Phase, tuple[str, ...]] = {
    "initial": ("plan", "execute"),
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
OPEN_PHASES: tuple[Phase, ...] = ("initial", "planning", "executing", "evaluating")
"""Phases in which custom actions are offered. After a summary, only an evaluation is offered."""


def offered_actions(progress: Progress, *, has_tools: bool) -> list[str]:
    """Return the actions to offer to the model in the current phase of the goal.

    Possible actions that make no sense yet are left out, such as another plan while all calls succeed.
    """
    row = TRANSITIONS.get(progress.phase, ())
    return [
        action
        for action in row
        if rejection_reason(action, progress, has_tools=has_tools) is None
        and not (action == "plan" and progress.phase == "executing" and not progress.has_failed)
        and not (action == "summarize" and progress.phase == "planning" and has_tools)
    ]


def rejection_reason(action: str, progress: Progress, *, has_tools: bool) -> str | None:
    """Return the reason why an action is not possible now, or None.

    Calls need tools. A summary or an evaluation needs earlier results; without tools, a summary needs none.
    """
    if action == "execute" and not has_tools:
        return "there are no tools"
    has_results = bool(progress.used_tools or progress.found)
    if action == "summarize" and has_tools and not has_results:
        return "nothing was done yet that could be summarized"
    if action == "evaluate" and not progress.summary and not has_results:
        return f"nothing was {'done' if has_tools else 'summed up'} yet that could be judged"
    return None
