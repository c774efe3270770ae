"""A prompt template specifies the format of responses and of tool invocations, and the prompt carries both.

Document: Core Architecture, PromptTemplate.
"""

from actgent import ReActAgent, ScriptedLLM, SimpleAgent


def main() -> None:
    react = ReActAgent("clerk", llm=ScriptedLLM([])).prompts.system_prompt()
    for word in (
        "question_nature",
        "SIMPLE",
        "COMPLEX",
        "primary_action",
        "response_purpose",
        "DIRECT_RESPONSE",
        "TOOL_INVOCATION",
        "response_content",
        "parameters",
    ):
        assert word in react, word
    simple = SimpleAgent("clerk", llm=ScriptedLLM([])).prompts.system_prompt()
    for word in ("messageType", "content", "DIRECT_RESPONSE", "TOOL_INVOCATION", "parameters"):
        assert word in simple, word
    assert "primary_action" not in simple


main()
