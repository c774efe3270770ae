"""Each mode clearly indicates which subset of the tools can be used.

Document: Unified System Prompt Architecture, Clear Mode Boundaries.
"""

import json

from actgent import BareAgent, Mode, Modes, ScriptedLLM, tool


@tool(thread=False)
def browse(address: str) -> str:
    """Read a page."""
    return address


@tool(thread=False)
def set_theme(theme: str) -> str:
    """Set the theme."""
    return theme


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return service


@tool(thread=False)
def approve(service: str) -> str:
    """Approve a service."""
    return service


def main() -> None:
    review = Mode("review", [approve], prompt="check what was deployed.")
    modes = Modes(review, universal=[browse], configuration=[set_theme], execution=[deploy])
    app = BareAgent("app", llm=ScriptedLLM([]), modes=modes)
    lines = app.system_prompt.splitlines()
    [universal] = [line for line in lines if line.startswith("Tools of every mode:")]
    sections = {line[2:].split(":")[0]: line for line in lines if line.startswith("- ")}
    assert "browse" in universal and "set_mode" in universal and "deploy" not in universal
    assert "set_theme" in sections["onboarding"] and "deploy" not in sections["onboarding"]
    assert "all tools" in sections["integration"]
    assert sections["plan"].endswith("(further tools: none)")
    assert "deploy" in sections["act"] and "set_theme" not in sections["act"]
    assert "approve" in sections["review"] and "check what was deployed." in sections["review"]
    assert json.dumps(app.system_prompt) == json.dumps(app.prompts.system_prompt())


main()
