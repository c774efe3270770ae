"""The two tools by which a model reaches tools that it was not offered: those that are deferred, and those that came later."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actgent.errors import ToolNotFound
from actgent.tools.adapters import ToolShape
from actgent.tools.base import Effect, Tool, ToolContext
from actgent.tools.outputs.results import to_text
from actgent.tools.registry import CALL_TOOL, FIND_TOOLS, ToolRegistry

from .toolset import Toolset, check_toolset

FOUND = 8
"""How many tools one search tells of."""
LONGEST_FOUND = 12_000
"""Characters of one search's result; tools behind that are named only."""
MOST_WORDS = 30
"""Different words of a query that are looked for, in its first `LONGEST_TEXT` characters."""
LONGEST_TEXT = 4_000
"""Characters of a query, or of what a tool says of itself, that are searched."""
SHORTEST_STEM = 4
"""Letters of a word that may end otherwise than the one that is looked for."""
_WORD = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class FindTools(Tool):
    """Lets the model search the tools that it was not offered."""

    name = FIND_TOOLS
    description = (
        "Search for more tools than you were offered, by words of their names and descriptions. "
        "Run what you found by call_tool."
    )
    effect: Effect = "pure"
    inline = True
    is_gateway = True
    in_every_mode = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What the tool is to do, in a few words."}},
        "required": ["query"],
        "additionalProperties": False,
    }

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        reachable = [
            tool for tool in self._registry if tool.origin and tool.name not in self._registry.mapped
        ]
        best = ranked(reachable, arguments["query"])[:FOUND]
        found: list[dict[str, Any]] = []
        size = 0
        for tool in best:
            told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            size += len(to_text(told))
            found.append(told if size <= LONGEST_FOUND else {"name": tool.name})
        return {"tools": found, "searched": len(reachable)}


class CallTool(Tool):
    """Stands for `call_tool` in a prompt; a call of it becomes one of the tool that it names before it runs."""

    name = CALL_TOOL
    description = "Run a tool that find_tools found, or that a notice named, by its name."
    effect: Effect = "once"  # after a restart nobody knows what a call did whose tool is not there any more
    inline = True
    is_gateway = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The tool's name."},
            "arguments": {"type": "object", "description": "Its arguments, as its parameters say."},
        },
        "required": ["name"],
        "additionalProperties": False,
    }

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        raise ToolNotFound(
            str(arguments["name"]),
            [tool.name for tool in ranked(list(self._registry), str(arguments["name"]))],
        )


def registry_of(
    given: Iterable[Tool | ToolShape | Toolset], *, mapped: Iterable[str]
) -> tuple[tuple[Toolset, ...], ToolRegistry]:
    """Divide what an agent is given into its toolsets and a registry, which has places for their tools.

    Where one of them may change, the registry has `find_tools` and `call_tool`, too.

    Raises:
        ConfigurationError: as `ToolRegistry`; or two toolsets have one name, or one has none.
        DuplicateTool: two tools have one name.
    """
    each_given = tuple(given)
    toolsets = tuple(each for each in each_given if isinstance(each, Toolset))
    registry = ToolRegistry((each for each in each_given if not isinstance(each, Toolset)), mapped=mapped)
    for toolset in toolsets:
        check_toolset(toolset)
        registry.declare(toolset.name)
    if any(toolset.may_change for toolset in toolsets):
        registry.add(FindTools(registry))
        registry.add(CallTool(registry))
    return toolsets, registry


def ranked(tools: Sequence[Tool], query: str) -> list[Tool]:
    """Return those tools that have a word of the query, best first: rare words count more, and those of a name three times."""
    texts = [_words_of(tool) for tool in tools]
    spread = Counter(word for words in texts for word in words)
    asked = list(dict.fromkeys(_words(query)))[:MOST_WORDS]
    scores = [
        sum(words[each] / spread[each] for each in words if any(_is_like(each, word) for word in asked))
        for words in texts
    ]
    order = sorted(range(len(tools)), key=lambda place: -scores[place])
    return [tools[place] for place in order if scores[place] > 0]


def _is_like(word: str, asked: str) -> bool:
    """Return True for the same word, or one that ends otherwise: issue and issues, search and searching."""
    if min(len(word), len(asked)) < SHORTEST_STEM:
        return word == asked
    return word.startswith(asked) or asked.startswith(word)


def _words(text: str) -> list[str]:
    return _WORD.findall(_CAMEL.sub(" ", text[:LONGEST_TEXT]).lower())


def _words_of(tool: Tool) -> Counter[str]:
    words = Counter(_words(tool.description) + _words(" ".join(tool.parameters.get("properties", {}))))
    for word in _words(tool.name):
        words[word] += 3
    return words
