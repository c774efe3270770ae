"""All tools across all modes are fully defined in the system prompt, so the model knows all capabilities in each mode.

Document: Unified System Prompt Architecture, Comprehensive Tool Definitions and Complete Tool Knowledge.

Differs: The system prompt has the names of the tools and their modes. The `tools` of each request have the schemas,
where providers expect them. The program needs no code for this.
"""

import trio

from actgent import BareAgent, Modes, OpenAI, tool
from actgent.testing import open_provider


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return "deployed"


async def main() -> None:
    async with open_provider(lambda _: "Hello.") as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="any")
        async with BareAgent("app", llm=llm, modes=Modes(execution=[deploy])) as app:
            session = await app.create_session("ada")
            for mode in ("onboarding", "integration", "plan", "act"):
                if session.mode != mode:
                    await session.set_mode(mode, by="user")
                await session.chat("Hello")
                await session.wait_idle()
            names = {each.name for each in app.tools}
        await llm.aclose()
        requests = [request.json for request in provider.requests]
    assert len(requests) == 4
    for request in requests:
        offered = {each["function"]["name"]: each["function"] for each in request["tools"]}
        assert set(offered) == names
        assert offered["deploy"]["description"] == "Deploy a service."
        assert offered["deploy"]["parameters"]["required"] == ["service"]
        system = request["messages"][0]["content"]
        [act] = [line for line in system.splitlines() if line.startswith("- act:")]
        assert "deploy" in act and "- integration:" in system, system


trio.run(main)
