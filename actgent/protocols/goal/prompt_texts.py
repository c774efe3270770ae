"""Texts about a goal: its progress for the model, and the final answer for the user."""

from collections.abc import Sequence

from actgent.messages import Message
from actgent.protocols.conversation_rendering import tool_documentation
from actgent.protocols.protocol_interface import TurnView
from actgent.tools.outputs.result_text import truncate

from .goal_progress import Progress, results_of

MAX_SHOWN_CHARS = 2_000
"""Maximum length of the repeated goal, and of each result in a final answer without a summary."""


def tool_changes(view: TurnView) -> list[str]:
    """Return lines that list the current tools, if they differ from the tools in the system prompt; otherwise none."""
    known, now = view.profile.tools, view.tools
    if known is now or known == now:
        return []
    return ["The tools have changed since.", tool_documentation(now) or "There are none any more."]


def feedback(progress: Progress) -> list[str]:
    """Return lines for the model about the last evaluation; none if the goal is achieved or was not evaluated."""
    evaluation = progress.evaluation
    if evaluation is None or progress.achieved:
        return []
    lines = [f"The last evaluation: not achieved. {evaluation.get('feedback') or ''}".rstrip()]
    if missing := evaluation.get("missing_items"):
        lines.append(f"Missing: {'; '.join(missing)}.")
    if suggestions := evaluation.get("suggestions"):
        lines.append(f"Suggestions: {'; '.join(suggestions)}.")
    return lines


def closing_text(progress: Progress, record: Sequence[Message]) -> str:
    """Return the final answer for the user: the answer of the evaluation, or the summary, or a list of the results.

    If the goal was not achieved, the text begins with the reason and ends with the missing items.
    """
    evaluation = progress.evaluation or {}
    found: str = progress.summary or _list_results(progress, record) or "Nothing was found."
    if progress.achieved:
        return (evaluation.get("answer") or "").strip() or found
    missing = evaluation.get("missing_items")
    lines = [f"The goal was not achieved: {progress.error}.", found]
    return "\n\n".join([*lines, f"Missing: {'; '.join(missing)}"] if missing else lines)


def _list_results(progress: Progress, record: Sequence[Message]) -> str:
    """Return the successful tool results of a goal as a text with a list, for a goal without a summary."""
    good = [result for result in results_of(progress, record) if result.error is None and result.content]
    return "\n".join(
        f"- {result.tool_name}: {result.fenced(truncate(result.content, MAX_SHOWN_CHARS))}" for result in good
    )
