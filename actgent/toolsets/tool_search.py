"""The tools `find_tools` and `call_tool`, by which a model uses tools that are deferred or were added later."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actgent.errors import ToolNotFound
from actgent.tools.outputs.result_text import to_text
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.tools.tool_registry import CALL_TOOL, FIND_TOOLS, ToolRegistry

from .toolset import Toolset, check_toolset

MAX_RESULTS = 8
"""Maximum number of tools in one search result."""
MAX_RESULT_CHARACTERS = 12_000
"""Maximum size of a search result in characters; further tools are listed by name only."""
MAX_QUERY_WORDS = 30
"""Maximum number of different words of a query."""
MAX_SEARCHED_CHARACTERS = 4_000
"""Number of characters of a query or description that are searched."""
MIN_STEM_CHARACTERS = 4
"""Minimum length of a word that also matches words with another ending."""
_WORD = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class FindTools(Tool):
    """The `find_tools` tool: searches the agent's deferred and later added tools, which were not offered to the model."""

    name = FIND_TOOLS
    description = (
        "Search for more tools than those listed, by words of their names and descriptions. "
        "Run a found tool by call_tool."
    )
    effect: Effect = "pure"
    inline = True
    is_gateway = True
    in_every_mode = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "The purpose of the tool, in a few words."}
        },
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        reachable = [
            tool for tool in self._registry if tool.origin and tool.name not in self._registry.mapped
        ]
        best = rank_tools(reachable, arguments["query"])[:MAX_RESULTS]
        found: list[dict[str, Any]] = []
        size = 0
        for tool in best:
            description = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            size += len(to_text(description))
            found.append(description if size <= MAX_RESULT_CHARACTERS else {"name": tool.name})
        return {"tools": found, "searched": len(reachable)}


class CallTool(Tool):
    """The `call_tool` tool. The registry replaces its calls by calls of the named tool, so the tool itself runs only for unknown names."""

    name = CALL_TOOL
    description = "Run a tool by its name, as found by find_tools or announced in a notice."
    effect: Effect = "once"  # after a restart the called tool may be gone, so its effect is unknown
    sinks = ()  # the called tool is checked in its place
    inline = True
    is_gateway = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The tool's name."},
            "arguments": {"type": "object", "description": "Its arguments, matching its parameters."},
        },
        "required": ["name"],
        "additionalProperties": False,
    }

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        raise ToolNotFound(
            str(arguments["name"]),
            [tool.name for tool in rank_tools(list(self._registry), str(arguments["name"]))],
        )


def build_registry(
    items: Iterable[Tool | ToolProtocol | Toolset], *, mapped: Iterable[str]
) -> tuple[tuple[Toolset, ...], ToolRegistry]:
    """Build an agent's tool registry. Return the toolsets among the items of `tools=`, and the registry.

    The tools of toolsets are added when the agent starts, at the positions of their toolsets. If the tools of a toolset may change, the
    registry also has `find_tools` and `call_tool`. `mapped` are the names of the tools that instructions are mapped to.

    Raises:
        ConfigurationError: A tool is invalid, two toolsets have the same name, or a toolset has no name.
        DuplicateTool: Two tools have the same name.
    """
    each_given = tuple(items)
    toolsets = tuple(each for each in each_given if isinstance(each, Toolset))
    registry = ToolRegistry((each for each in each_given if not isinstance(each, Toolset)), mapped=mapped)
    for toolset in toolsets:
        check_toolset(toolset)
        registry.declare(toolset.name)
    if any(toolset.may_change for toolset in toolsets):
        registry.add(FindTools(registry))
        registry.add(CallTool(registry))
    return toolsets, registry


def rank_tools(tools: Sequence[Tool], query: str) -> list[Tool]:
    """Return the tools that match a word of the query, best match first. Rare words and words of a tool's name have more weight."""
    texts = [_weighted_words(tool) for tool in tools]
    spread = Counter(word for words in texts for word in words)
    query_words = list(dict.fromkeys(_split_words(query)))[:MAX_QUERY_WORDS]
    scores = [
        sum(
            words[each] / spread[each]
            for each in words
            if any(_same_stem(each, word) for word in query_words)
        )
        for words in texts
    ]
    order = sorted(range(len(tools)), key=lambda place: -scores[place])
    return [tools[place] for place in order if scores[place] > 0]


def _same_stem(word: str, other: str) -> bool:
    """Return True if two words are equal or one is a prefix of the other, e.g. issue and issues, so that they may have one stem."""
    if min(len(word), len(other)) < MIN_STEM_CHARACTERS:
        return word == other
    return word.startswith(other) or other.startswith(word)


def _split_words(text: str) -> list[str]:
    """Split a text into lower-case words. Words in camel case are also split."""
    return _WORD.findall(_CAMEL.sub(" ", text[:MAX_SEARCHED_CHARACTERS]).lower())


def _weighted_words(tool: Tool) -> Counter[str]:
    """Return the words of a tool's name, description and parameters with their weights."""
    words = Counter(
        _split_words(tool.description) + _split_words(" ".join(tool.parameters.get("properties", {})))
    )
    for word in _split_words(tool.name):
        words[word] += 3
    return words
