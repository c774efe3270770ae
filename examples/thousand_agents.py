"""Run a thousand agents concurrently in one runtime. A model call takes half a second, and all calls take little longer."""

import trio

from actgent import BareAgent, Runtime, ScriptedLLM, open_runtime

AGENTS = 1000


def agent(number: int) -> BareAgent:
    model = ScriptedLLM([f"I am number {number}."], delay=0.5)
    return BareAgent(f"agent {number}", role=f"number {number} of {AGENTS}", llm=model)


async def start_agents(runtime: Runtime) -> list[BareAgent]:
    return [await runtime.start(agent(number)) for number in range(AGENTS)]


async def ask_all(agents: list[BareAgent]) -> list[str]:
    answers: list[str] = []

    async def ask(one: BareAgent) -> None:
        answers.append((await one.ref.ask("Who are you?")).text)

    async with trio.open_nursery() as nursery:
        for one in agents:
            nursery.start_soon(ask, one)
    return answers


async def main() -> None:
    async with open_runtime() as runtime:
        agents = await start_agents(runtime)
        began = trio.current_time()
        answers = await ask_all(agents)
        print(f"{len(set(answers))} different answers in {trio.current_time() - began:.1f} s")
        print("one after the other it would be", f"{AGENTS * 0.5:.0f} s")


if __name__ == "__main__":
    trio.run(main)
