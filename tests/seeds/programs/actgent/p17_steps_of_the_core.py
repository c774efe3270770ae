"""AgentCore processes each message with `processMessage`, `promptLLM` and `handleLLMResponse`, and a subclass can override a step.

Document: Core Architecture, AgentCore; Message Processing Pipeline.

Differs: The steps have other names. Override `remember` and `act` for `processMessage`, `ask` for `promptLLM`, and
`read` and `reply` for `handleLLMResponse`.
"""

import trio

from actgent import AgentCore, BareAgent, ScriptedLLM

STEPS = []


class Core(AgentCore):
    def remember(self, context, turn, message):
        STEPS.append(f"remember {message.text!r}")
        super().remember(context, turn, message)

    async def ask(self, context, turn, *args, **options):
        STEPS.append("ask")
        return await super().ask(context, turn, *args, **options)

    def read(self, *args, **options):
        STEPS.append("read")
        return super().read(*args, **options)

    async def act(self, context, turn, message, outcomes):
        STEPS.append("act")
        await super().act(context, turn, message, outcomes)

    async def reply(self, context, turn, deliveries):
        STEPS.append("reply")
        await super().reply(context, turn, deliveries)


class Clerk(BareAgent):
    core_type = Core


async def main() -> None:
    async with Clerk("clerk", llm=ScriptedLLM(["Good morning."])) as agent:
        assert str(await agent.run("Hello")) == "Good morning."
    assert STEPS[:4] == ["remember 'Hello'", "ask", "read", "act"], STEPS
    assert "reply" in STEPS


trio.run(main)
