"""`LLMCallError` is raised when the communication with the model fails, with the error of the client as its cause.

Document: Error Handling Strategy, LLMCallError.

Differs: The error is named `ModelError`, and has subclasses such as `NotAuthorized` and `RateLimited`. Write `except
ModelError`.
"""

import trio

from actgent import ModelError, NotAuthorized, OpenAI, Retry, RetryingModel, StepsAgent
from actgent.testing import ErrorStatus, open_provider


class Client:
    def call(self, messages, **kwargs) -> str:
        raise ConnectionError("no route to the model")


async def main() -> None:
    patient = RetryingModel(Client(), Retry.exponential(2, multiplier=0.001, least=0.001))
    for client in (Client(), patient):
        async with StepsAgent("clerk", llm=client) as agent:
            try:
                await agent.run("Hello?")
            except ModelError as error:
                assert isinstance(error.__cause__, ConnectionError)
            else:
                raise AssertionError("it answered")
    async with open_provider([ErrorStatus(401)]) as provider:
        llm = OpenAI("gpt-4o", base_url=provider.openai_url, api_key="k")
        async with StepsAgent("clerk", llm=llm) as agent:
            try:
                await agent.run("Hello?")
            except NotAuthorized as error:
                assert error.status == 401
        await llm.aclose()


trio.run(main)
