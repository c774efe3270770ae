"""A new tool is a function in a collection of tools. The collection determines the access rule of the tool.

Document: Adding New Functionality, Add New Tools.
"""

import trio

from actgent import BareAgent, ConfigurationError, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return "deployed"


@tool(thread=False)
def translate(text: str) -> str:
    """Translate a text."""
    return "ciao"


async def main() -> None:
    rights = {}
    for place in ("universal", "configuration", "testing", "execution"):
        modes = Modes(**{"execution": [deploy], place: [translate]})
        rights[place] = {mode.name for mode in modes if modes.allows(mode.name, translate)}
    assert rights == {
        "universal": {"onboarding", "integration", "plan", "act"},
        "configuration": {"onboarding", "integration"},
        "testing": {"integration"},
        "execution": {"integration", "act"},
    }, rights
    llm = ScriptedLLM([ToolCall("translate", {"text": "hello"}), "ciao"])
    async with BareAgent("app", llm=llm, modes=Modes(universal=[translate], initial="plan")) as app:
        assert str(await app.run("Translate hello.")) == "ciao"
    try:
        BareAgent("app", llm=llm, tools=[translate], modes=Modes(universal=["transalte"]))
    except ConfigurationError as error:
        assert "transalte" in str(error) and "translate" in str(error)
    else:
        raise AssertionError("a misspelt tool was accepted")


trio.run(main)
