"""Tool access control is enforced for each mode: the table defines whether a tool runs or is rejected in a mode.

Document: Testing and Validation; Mode-Based Tool Access Control.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool

RAN = []


def make(name: str):
    @tool(thread=False, name=name, description=f"Run {name}.")
    def run() -> str:
        RAN.append(name)
        return name

    return run


UNIVERSAL, CONFIGURATION, TESTING, EXECUTION = map(
    make, ("universal", "configuration", "testing", "execution")
)
TABLE = {
    "onboarding": {"universal", "configuration"},
    "integration": {"universal", "configuration", "testing", "execution"},
    "plan": {"universal"},
    "act": {"universal", "execution"},
}
ALL = [UNIVERSAL, CONFIGURATION, TESTING, EXECUTION]


async def main() -> None:
    modes = Modes(
        universal=[UNIVERSAL], configuration=[CONFIGURATION], testing=[TESTING], execution=[EXECUTION]
    )
    calls = [ToolCall(each.name, {}) for each in ALL]
    llm = ScriptedLLM(lambda chat: "Done." if chat.messages[-1].role == "tool" else calls)
    async with BareAgent("app", llm=llm, modes=modes) as app:
        session = await app.create_session("ada")
        for mode, allowed in TABLE.items():
            if session.mode != mode:
                await session.set_mode(mode, by="user")
            RAN.clear()
            await session.chat("Run all.")
            await session.wait_idle()
            assert set(RAN) == allowed, (mode, RAN)
            assert {each.name for each in ALL if modes.allows(mode, each)} == allowed


trio.run(main)
