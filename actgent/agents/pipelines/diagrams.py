"""Diagrams of pipelines: as Mermaid flowcharts, and as lines of text."""

from collections.abc import Iterator, Mapping

from .dependency_graph import Graph, GraphStep
from .pipeline_results import StepResult

_SIGNS = {"done": "✓", "failed": "✗", "skipped": "–", "pending": "…"}
_COLOURS = {
    "done": "fill:#d8f3dc,stroke:#2d6a4f",
    "failed": "fill:#ffd6d6,stroke:#a4161a",
    "skipped": "fill:#eeeeee,stroke:#888888",
    "pending": "fill:#fff3cd,stroke:#b8860b",
}
_MERMAID = str.maketrans({"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"})
_MAX_LINE_CHARS = 60


def to_mermaid(
    graph: Graph, agents: Mapping[str, str], results: Mapping[str, StepResult] | None = None
) -> str:
    """Return the steps of a pipeline as a Mermaid flowchart with conditions as rhombs.

    `agents` has the name of each step's agent. `results` colour the steps by their status; None draws them without status.
    """
    lines = ["flowchart TD"]
    for name, step in graph.steps.items():
        lines.append(f'    s_{_id(name)}["{_escape_label(name)}<br/><i>{_escape_label(agents[name])}</i>"]')
        target = f"s_{_id(name)}"
        if step.when is not None:
            target = f"w_{_id(name)}"
            lines.append(f'    {target}{{"{_escape_label(str(step.when))}"}} --> s_{_id(name)}')
        lines += [f"    s_{_id(each)} --> {target}" for each in graph.before(name)]
    if results is not None:
        lines += [f"    classDef {status} {colour}" for status, colour in _COLOURS.items()]
        lines += [f"    class s_{_id(name)} {results[name].status}" for name in graph.steps]
    return "\n".join(lines) + "\n"


def _id(name: str) -> str:
    """Return the Mermaid id of a step. `-` can start an arrow in Mermaid, so it is escaped."""
    return name.replace("_", "__").replace("-", "_m_")


def _escape_label(text: str) -> str:
    return _shorten_line(text).translate(_MERMAID)


def _shorten_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[: _MAX_LINE_CHARS - 1]}…"


def to_lines(graph: Graph, agents: Mapping[str, str], results: Mapping[str, StepResult] | None = None) -> str:
    """Return the steps of a pipeline as lines of text, in groups that can run concurrently.

    `agents` has the name of each step's agent. `results` put a sign for the status before each step; None omits it.
    """
    width = max(map(len, graph.steps))
    wide = max(len(each) for each in agents.values())
    lines = []
    for number, group in enumerate(graph.groups, 1):
        for position, name in enumerate(group):
            head = f"{number:>3} " if not position else "    "
            bracket = _bracket(position, len(group))
            sign = "" if results is None else f"{_SIGNS[results[name].status]} "
            row = f"{head}{bracket} {sign}{name:<{width}}  {agents[name]:<{wide}}  {'  '.join(_notes(graph, name))}"
            lines.append(row.rstrip())
            if results is not None and results[name].reason:
                lines.append(
                    f"    {'│' if position + 1 < len(group) else ' '}   {_shorten_line(results[name].reason)}"
                )
    return "\n".join(lines) + "\n"


def _bracket(position: int, count: int) -> str:
    if count == 1:
        return "─"
    return "┬" if not position else "└" if position == count - 1 else "├"


def _notes(graph: Graph, name: str) -> Iterator[str]:
    step: GraphStep = graph.steps[name]
    if before := graph.before(name):
        yield f"← {', '.join(before)}"
    if step.when is not None:
        yield f"when {_shorten_line(str(step.when))}"
    if step.retries:
        yield f"retries {step.retries}"
    if step.timeout is not None:
        yield f"timeout {step.timeout:g} s"
