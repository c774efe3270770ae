"""PromptManager substitutes variables in prompts, and never renders the value of a variable as a template.

Document: Core Architecture, PromptManager (variable substitution).
"""

import trio

from actgent import BareAgent, ScriptedLLM
from actgent.protocols.prompt_layers import PromptLayer


async def main() -> None:
    llm = ScriptedLLM(["Benvenuto."], repeat=True)
    layer = PromptLayer(
        "Speak {{ language }}. House rule: {{ rule }}",
        variables={"language": "Italian", "rule": "no {{ dogs }}"},
    )
    async with BareAgent("host", llm=llm, role="a host", prompt=layer) as agent:
        session = await agent.create_session(
            "ada",
            prompt=PromptLayer("The guest is {{ guest }}.", variables={"guest": "Ada {{ profile.role }}"}),
        )
        await agent.run("Hello", session=session)
    prompt = llm.chats[0].system
    assert "Speak Italian. House rule: no {{ dogs }}" in prompt, prompt
    assert "The guest is Ada {{ profile.role }}." in prompt


trio.run(main)
