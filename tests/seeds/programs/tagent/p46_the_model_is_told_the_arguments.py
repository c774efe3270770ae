"""The signature of a tool describes its arguments for the model, and invalid arguments do not reach the tool.

Document: Core Architecture Principles, Modular Tool System (Type-safe tool registration); Tool Integration (args).
"""

import json
from typing import Any, Dict, Optional, Tuple, TypedDict

from actgent import ScriptedLLM, run_agent_sync

seen = []


class SearchArgs(TypedDict):
    query: str
    limit: int


def search(state: Dict[str, Any], args: SearchArgs) -> Optional[Tuple[str, Any]]:
    """Search the archive."""
    seen.append(dict(args))
    return ("found", args["query"])


def fetch(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Fetch a page.

    Args:
        url (str): The address of the page.
        pages (int, optional): How many pages.
    """
    seen.append(dict(args))
    return ("page", args["url"])


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


model = ScriptedLLM(
    [
        act("execute", tool="search", args={"query": "lakes", "limit": "many"}),
        act("execute", tool="search", args={"query": "lakes", "limit": 3}),
        act("execute", tool="fetch", args={}),
        act("execute", tool="fetch", args={"url": "lakes.html"}),
        act("evaluate", achieved=True, answer="found"),
    ]
)
result = run_agent_sync("Find lakes.", model, tools={"search": search, "fetch": fetch})
prompt = f"{model.chats[0].system} {model.chats[0].messages} {model.chats[0].tools}"
for word in ("search", "query", "limit", "fetch", "url", "The address of the page.", "pages"):
    assert word in prompt, word
assert seen == [{"query": "lakes", "limit": 3}, {"url": "lakes.html"}]
assert [each.status for each in result.tool_results] == ["error", "success", "error", "success"]
