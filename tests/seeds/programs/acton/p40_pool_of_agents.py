"""A pool of agents serves many requests at the same time.

Document: Thread Safety, Recommendations (Use a pool of agents for high concurrency).
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent, open_runtime


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Hello."})], repeat=True)
    answers = []
    async with open_runtime() as runtime:
        pool = [await runtime.start(StepsAgent(f"clerk-{number}", llm=llm)) for number in range(20)]
        async with trio.open_nursery() as nursery:

            async def ask(number: int) -> None:
                answers.append(str(await pool[number % len(pool)].run("Hello?")))

            for number in range(200):
                nursery.start_soon(ask, number)
    assert answers == ["Hello."] * 200


trio.run(main)
