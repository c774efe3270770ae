"""Data models are validated: a message has one of a few roles and a content, and the constructor rejects wrong data.

Document: Design Patterns, 3. Structured Data with Pydantic.

Differs: Messages are immutable attrs classes, because these are fast at 10,000 sessions. `sender.kind` and `text`
replace `role` and `content`. You can use pydantic models for your own data: `output=`, and parameters and results of
tools.
"""

import json

import pydantic

from actgent import ActgentError, Message, ScriptedLLM, Sender, StepsAgent


class Weather(pydantic.BaseModel):
    city: str
    degrees: int = pydantic.Field(lt=60)


message = Message(session_id="s", sender=Sender("ada", "user"), parts="Hello")
assert (message.sender.kind, message.text) == ("user", "Hello")
for wrong in (
    lambda: Sender("ada", "robot"),
    lambda: Message(session_id="s", sender=7, parts="Hello"),
    lambda: Message(session_id="s", sender=Sender("ada"), parts=7),
):
    try:
        wrong()
    except (ActgentError, TypeError):
        continue
    raise AssertionError("wrong data was taken")
answers = [{"city": "Turin", "degrees": 400}, {"city": "Turin", "degrees": 24}]
llm = ScriptedLLM([json.dumps({"final_answer": answer}) for answer in answers])
reply = StepsAgent("clerk", llm=llm, output=Weather).run_sync("How is it?")
assert reply.data == Weather(city="Turin", degrees=24)
assert len(llm.chats) == 2
