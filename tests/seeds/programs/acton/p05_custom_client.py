"""A custom client is any class with `call(messages, **kwargs) -> str`; nothing has to be inherited.

Document: Core Components, 2. LLM Client; Design Patterns, 1. Protocol-Oriented Design; Extension Points, Custom LLM Client.
"""

from typing import List

from actgent import Message, StepsAgent


class MyLLMClient:
    def call(self, messages: List[Message], **kwargs) -> str:
        seen.append([(message.role, message.content) for message in messages])
        return '{"final_answer": "Hello."}'


seen = []
assert (
    str(StepsAgent("clerk", llm=MyLLMClient(), system_prompt="You are brief.").run_sync("Hello?")) == "Hello."
)
roles = [role for role, _ in seen[0]]
assert roles[0] == "system"
assert set(roles) <= {"user", "assistant", "system"}
assert "You are brief." in seen[0][0][1]
assert any(role == "user" and "Hello?" in content for role, content in seen[0])
