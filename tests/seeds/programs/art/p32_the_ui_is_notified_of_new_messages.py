"""The UI is notified of the new user message and the new AI message of a thread.

Document: The 6 Stages of PES Execution, 6. Finalization and Response Delivery (ConversationSocket).
"""

import json
from functools import partial

import trio

from actgent import PlanAgent, ScriptedLLM, open_runtime
from actgent.journal.record_types import MessageAcceptedRecord, MessageEndRecord, OutcomeRecord

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    async with open_runtime(journal="memory:") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([PLAN, "Hello Ada."])))
        thread = await art.create_session("ada", session_id="t1")
        received, ended = [], False
        async with thread.follow() as socket, trio.open_nursery() as nursery:
            nursery.start_soon(partial(art.process, "Hello?", session=thread))
            while not ended:
                record = (await socket.receive()).record
                match record:
                    case MessageAcceptedRecord():
                        received.append(record.message.text)
                    case OutcomeRecord(kind="reply"):
                        received.append(record.text)
                ended = isinstance(record, MessageEndRecord)
    assert received == ["Hello?", "Hello Ada."]


trio.run(main)
