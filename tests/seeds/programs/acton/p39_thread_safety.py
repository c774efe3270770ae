"""An agent is not thread-safe: use one agent for each thread or request, and do not share an agent across threads.

Document: Thread Safety.

Differs: Each run has its own session, so one agent serves many concurrent requests. To call the agent from threads,
write `with open_portal() as portal: portal.start(agent).run(text)`.
"""

import json
import threading

import trio

from actgent import StepsAgent, open_portal


async def echo(messages) -> str:
    await trio.sleep(0.001)
    asked = [message.content for message in messages if message.role == "user" and "Q" in message.content]
    return json.dumps({"final_answer": asked[-1]})


async def main() -> None:
    answers = {}
    async with StepsAgent("clerk", llm=echo) as agent, trio.open_nursery() as nursery:

        async def ask(number: int) -> None:
            answers[number] = str(await agent.run(f"Q{number}"))

        for number in range(50):
            nursery.start_soon(ask, number)
    assert answers == {number: f"Q{number}" for number in range(50)}


trio.run(main)
answers = {}
with open_portal() as portal:
    shared = portal.start(StepsAgent("shared", llm=echo))
    threads = [
        threading.Thread(target=lambda n=n: answers.__setitem__(n, str(shared.run(f"Q{n}"))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert answers == {number: f"Q{number}" for number in range(8)}
