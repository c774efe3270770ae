"""What is said of a goal: to the model of where it stands, and to the user at its end."""

from collections.abc import Sequence

from actgent.messages import Message
from actgent.protocols.base import View
from actgent.protocols.renderings import tool_documentation
from actgent.tools.outputs.results import capped

from .progress import Progress, results_of

SHOWN_CHARACTERS = 2_000
"""Of the goal where it is said again, and of each result that stands in for words."""


def moved_tools(view: View) -> list[str]:
    """List the tools that came and went since, which the system prompt does not know, as it never moves."""
    told, now = view.profile.tools, view.tools
    if told is now or told == now:
        return []
    return ["The tools have changed since.", tool_documentation(now) or "There are none any more."]


def feedback(progress: Progress) -> list[str]:
    """Return what the last evaluation said, as long as the goal is not achieved."""
    evaluation = progress.evaluation
    if evaluation is None or progress.achieved:
        return []
    lines = [f"The last evaluation: not achieved. {evaluation.get('feedback') or ''}".rstrip()]
    if missing := evaluation.get("missing_items"):
        lines.append(f"Missing: {'; '.join(missing)}.")
    if suggestions := evaluation.get("suggestions"):
        lines.append(f"Suggestions: {'; '.join(suggestions)}.")
    return lines


def closing_words(progress: Progress, record: Sequence[Message]) -> str:
    """Render the user's text: the answer, or else what was found; and what is missing, if it is not achieved."""
    evaluation = progress.evaluation or {}
    found: str = progress.summary or _listed(progress, record) or "Nothing was found."
    if progress.achieved:
        return (evaluation.get("answer") or "").strip() or found
    missing = evaluation.get("missing_items")
    lines = [f"The goal was not achieved: {progress.error}.", found]
    return "\n\n".join([*lines, f"Missing: {'; '.join(missing)}"] if missing else lines)


def _listed(progress: Progress, record: Sequence[Message]) -> str:
    """The results themselves, where nobody put them into words."""
    good = [result for result in results_of(progress, record) if result.error is None and result.content]
    return "\n".join(
        f"- {result.tool_name}: {result.fenced(capped(result.content, SHOWN_CHARACTERS))}" for result in good
    )
