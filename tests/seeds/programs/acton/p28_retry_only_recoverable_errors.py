"""Calls are retried only after recoverable errors such as HTTP 429, 500 and 503. An invalid key and an invalid request are not retried.

Document: Performance Considerations, 2. Retry Logic (Retry only on recoverable errors).
"""

import json

import trio

from actgent import ModelError, OpenAI, Retry, StepsAgent
from actgent.testing import ErrorStatus, open_provider

FINAL = json.dumps({"final_answer": "Hello."})


async def main() -> None:
    retry = Retry(first_delay=0.001, max_delay=0.002)
    for status, calls in ((429, 2), (500, 2), (503, 2), (401, 1), (400, 1)):
        async with open_provider([ErrorStatus(status), FINAL]) as provider:
            client = OpenAI("gpt-4o", base_url=provider.openai_url, api_key="k", retry=retry)
            async with StepsAgent("clerk", llm=client) as agent:
                try:
                    answer = str(await agent.run("Hello?"))
                except ModelError as error:
                    answer = f"{error.status}"
            await client.aclose()
            assert len(provider.requests) == calls, status
            assert answer == ("Hello." if calls == 2 else str(status))


trio.run(main)
