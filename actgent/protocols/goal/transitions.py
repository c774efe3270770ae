"""Which actions are offered on the way to a goal, and which are refused.

    initial ──plan──► planning ──execute──► executing ──summarize──► summarizing ──evaluate──► evaluating
       │                 ▲                    ▲  ▲ └────────evaluate─────────────────────────►  │
       │                 └───plan (a failure)─┘  └────────────────execute────────────────────── │
       └───execute────────────────────────────┘                                                 │
                         ▲────────────────────────plan──────────────────────────────────────────┘

The table is what a model is offered. One that decides otherwise, such as to act and to judge at once, is not held up:
refused is only what cannot be done, because nothing is there that it could be done with. An evaluation that finds the
goal achieved ends the turn, so the table says only what follows one that does not.
"""

from collections.abc import Mapping

from .progress import Phase, Progress

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
"""Phases in which custom actions are offered. After a summary only an evaluation is."""


def offered(progress: Progress, *, has_tools: bool) -> list[str]:
    """The actions that a model is offered next, in the table's order."""
    row = TRANSITIONS.get(progress.phase, ())
    return [
        action
        for action in row
        if refusal(action, progress, has_tools=has_tools) is None
        and not (action == "plan" and progress.phase == "executing" and not progress.has_failed)
        and not (action == "summarize" and progress.phase == "planning" and has_tools)
    ]


def refusal(action: str, progress: Progress, *, has_tools: bool) -> str | None:
    """Why an action cannot be done now, None if it can; without tools, what the model knows is all there can be."""
    if action == "execute" and not has_tools:
        return "there are no tools"
    is_worked = bool(progress.used_tools or progress.found)
    if action == "summarize" and has_tools and not is_worked:
        return "nothing was done yet that could be summarized"
    if action == "evaluate" and not progress.summary and not is_worked:
        return f"nothing was {'done' if has_tools else 'summed up'} yet that could be judged"
    return None
