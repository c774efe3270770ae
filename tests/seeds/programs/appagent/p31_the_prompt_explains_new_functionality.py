"""The unified system prompt is updated to explain new tools and new modes.

Document: Testing and Validation.
"""

from actgent import BareAgent, Mode, Modes, ScriptedLLM, tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return service


@tool(thread=False)
def approve(service: str) -> str:
    """Approve a service."""
    return service


def main() -> None:
    old = BareAgent("app", llm=ScriptedLLM([]), modes=Modes(execution=[deploy])).system_prompt
    review = Mode("review", [approve], prompt="check what was deployed.")
    new = BareAgent("app", llm=ScriptedLLM([]), modes=Modes(review, execution=[deploy])).system_prompt
    assert "review" not in old and "approve" not in old
    [section] = [line for line in new.splitlines() if line.startswith("- review:")]
    assert "check what was deployed." in section and "approve" in section
    for mode in ("onboarding", "integration", "plan", "act"):
        [before] = [line for line in old.splitlines() if line.startswith(f"- {mode}:")]
        assert before in new.splitlines()


main()
