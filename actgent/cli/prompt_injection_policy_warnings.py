"""Warnings of `actgent check` about prompt injection: agents without a policy, and tools with missing declarations.

Names of tools and parameters only show that a declaration may be missing, so a warning never changes the exit code.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from actgent.agents.agent import Agent
from actgent.tools.function_tool import FunctionTool
from actgent.tools.outputs.oversized_results import ReadResult
from actgent.tools.tool_interface import Tool, unwrap_tool
from actgent.toolsets.toolset import Toolset, static_tools
from actgent.turns.calls.untrusted_text_policy import sinks_of

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_READ = frozenset("check fetch find get list load look open pull query read receive search show view".split())
_DOWNLOAD = frozenset("browse crawl download fetch scrape".split())
"""Verbs of tools that read from a network, with any object."""
_CONTENT = frozenset(
    "attachment calendar channel chat comment contact document email event feed file forum inbox invoice issue mail "
    "mailbox message news page post review rss site thread ticket transcript tweet url web website".split()
)
"""Objects that third parties often write."""
_ACT = frozenset(
    "book buy cancel delete drop execute forward insert invite move notify order pay post publish refund remove reply "
    "reserve run send share submit transfer upload write".split()
)
"""Verbs of tools that change something outside of the agent."""
_RECEIVER = frozenset(
    "account domain email host iban phone receiver receivers recipient recipients to".split()
)
"""Usual names of parameters with the receiver of data."""


def policy_warnings(agent: Agent) -> list[str]:
    """Return warnings about an agent that may be open to prompt injection.

    Warnings are: a missing policy, tools that do not declare whether they return untrusted text, and tools that do not declare
    their sinks (parameters that need trusted values). The tools of an unconnected toolset are unknown. These tools count as
    untrusted, unless the toolset is declared as trusted.
    """
    toolsets = [each for each in agent.toolsets if not static_tools(each)]
    tools = [*agent.tools]
    for each in agent.toolsets:
        tools += each.tools_from(static_tools(each))
    named = {each.name: each for each in tools}.values()
    warnings = list(_missing_declarations(named))
    if agent.policy is None and (reason := _needs_policy(named, toolsets)):
        warnings.insert(0, f"agent {agent.name!r} has no policy: {reason}; pass policy=Policy()")
    return warnings


def _needs_policy(tools: Iterable[Tool], toolsets: Sequence[Toolset]) -> str:
    """Return the reason why an agent needs a policy; empty if it needs none.

    An agent needs a policy if it reads untrusted text and can call tools with effects.
    """
    connected = [f"the toolset {each.name}" for each in toolsets]
    sources = [each.name for each in tools if each.outside and not isinstance(each, ReadResult)]
    sources += [f"the toolset {each.name}" for each in toolsets if each.outside]
    sinks = [each.name for each in tools if _is_checked(each)] + connected
    if not sources or not sinks:
        return ""
    return f"the model reads untrusted text of {', '.join(sources)}, and can call {', '.join(sinks)}"


def _is_checked(tool: Tool) -> bool:
    """Return True if a data-flow policy would check calls of the tool."""
    return sinks_of(tool, dict.fromkeys(tool.parameters.get("properties", ()))) is not None


def _missing_declarations(tools: Iterable[Tool]) -> Iterator[str]:
    for each in tools:
        if not _is_user_defined(each):
            continue
        if not _declares_source(each) and _looks_untrusted(each):
            yield (
                f"tool {each.name!r} looks like it returns text of third parties: declare untrusted=True, or untrusted=False"
            )
        if each.sinks is None and each.effect == "pure" and (reason := _looks_active(each)):
            yield f"tool {each.name!r} has the effect 'pure', so its calls are not checked, but {reason}: declare effect= or sinks="


def _is_user_defined(tool: Tool) -> bool:
    """Return True if the user's program defines the tool.

    Tools of actgent need no check, because they declare their untrusted sources and sinks.
    """
    inner = unwrap_tool(tool)
    code = inner.func if isinstance(inner, FunctionTool) else type(inner)
    return not str(getattr(code, "__module__", "")).startswith("actgent.")


def _declares_source(tool: Tool) -> bool:
    """Return True if the tool's definition declares whether the tool returns untrusted text."""
    inner = unwrap_tool(tool)
    if isinstance(inner, FunctionTool):
        return tool.outside or inner.declares_source
    above = type(inner).__mro__[: type(inner).__mro__.index(Tool)]
    return tool.outside or "outside" in vars(inner) or any("outside" in vars(each) for each in above)


def _looks_untrusted(tool: Tool) -> bool:
    words = _words(tool.name)
    if words[:1] and words[0] in _ACT:
        return False
    has_content = any(word in _CONTENT or word.removesuffix("s") in _CONTENT for word in words)
    return bool(_DOWNLOAD.intersection(words) or (has_content and _READ.intersection(words)))


def _looks_active(tool: Tool) -> str:
    """Return the reason why a tool seems to have an effect, from its name and parameters; empty if it does not."""
    words = _words(tool.name)
    if words and words[0] in _ACT:
        return f"its name begins with {words[0]!r}"
    names = [name for name in tool.parameters.get("properties", ()) if name.casefold() in _RECEIVER]
    return f"its parameter {names[0]!r} looks like the receiver of data" if names else ""


def _words(name: str) -> list[str]:
    """Split a name in snake case or camel case into lower-case words."""
    return [word.casefold() for word in _WORD.findall(name)]
