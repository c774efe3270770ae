"""Any model that generates text works: a function from messages to text is enough.

Document: Technical Overview; Core Architecture Principles, Structured Output Integration (LLM Compatibility).
"""

from actgent import run_agent_sync


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


def model(messages) -> str:
    prompts.append(str(messages))
    if "1642" in prompts[-1]:
        return 'I am done.\n{"action": "evaluate", "params": {"achieved": true, "answer": "1642 m"}}'
    return '```json\n{"action": "execute", "params": {"tool": "lookup", "args": {}}}\n```'


prompts = []
result = run_agent_sync("How deep is Lake Baikal?", model, tools={"lookup": lookup})
assert (result.achieved, len(prompts)) == (True, 2)
assert "Look up the depth of a lake in metres." in prompts[0]
