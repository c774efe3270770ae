"""Failed calls of the model are retried with exponential backoff: 3 attempts, `multiplier=2`, at least 1 and at most 60 seconds.

Document: Design Patterns, 4. Retry Pattern with Tenacity; Performance Considerations, 2. Retry Logic.

Differs: The built-in clients retry automatically. For a custom client, write `llm=RetryingModel(client,
Retry.exponential(3, multiplier=2, least=1, most=60))` in place of `retry_config=`.
"""

import json

import trio
import trio.testing

from actgent import Limits, ModelError, Retry, RetryingModel, StepsAgent


class Client:
    """It fails the given number of times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.times = failures, []

    async def call(self, messages, **kwargs) -> str:
        self.times.append(trio.current_time())
        if len(self.times) <= self.failures:
            raise ConnectionError("the line is cut")
        return json.dumps({"final_answer": "Hello."})


async def ask(client: Client, retry: Retry) -> list[float]:
    limits = Limits(model_timeout=600)  # a call with its retries has 120 s otherwise
    async with StepsAgent("clerk", llm=RetryingModel(client, retry), limits=limits) as agent:
        assert str(await agent.run("Hello?")) == "Hello."
    return [round(after - before) for before, after in zip(client.times, client.times[1:], strict=False)]


async def main() -> None:
    assert await ask(Client(2), Retry.exponential()) == [2, 4]
    assert await ask(Client(6), Retry.exponential(7, multiplier=2, least=1, most=60)) == [2, 4, 8, 16, 32, 60]
    lost = Client(3)
    try:
        await ask(lost, Retry.exponential())
    except ModelError as error:
        assert isinstance(error.__cause__, ConnectionError)
    assert len(lost.times) == 3


trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
