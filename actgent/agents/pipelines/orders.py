"""What a run is told: its inputs at first, and later which steps to do again."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from actgent.errors import ToolError, nearest
from actgent.support.strict_json import load_document

from .graph import Graph
from .outcomes import INPUTS, ORDER, ROUNDS, STEPS, StepResult, results_in

FROM = "from"
"""The key of the steps to do again, in the message that says so."""


def read_inputs(text: str, graph: Graph) -> dict[str, Any]:
    """Read the inputs of a run from its first message: a JSON object, or a text where there is one input alone.

    Raises:
        ToolError: they are not those that the steps read.
    """
    given, wanted = _as_object(text), graph.read_inputs
    if given is None and len(wanted) == 1:
        given = {wanted[0]: text}
    if given is None:
        if wanted:
            raise ToolError(
                f"the inputs are a JSON object with {_listed(wanted)}, such as {{{json.dumps(wanted[0])}: ...}}"
            )
        given = {}
    if reason := input_refusal(given, graph):
        raise ToolError(reason)
    return dict(given)


def input_refusal(given: Mapping[str, Any], graph: Graph) -> str:
    """Say what is wrong with the inputs of a run; empty for nothing."""
    missing = [name for name in graph.read_inputs if name not in given]
    if missing:
        return f"the input {missing[0]!r} is missing: the steps read {_listed(graph.read_inputs)}"
    read = (each for step in graph.steps.values() for each in step.references)
    known = {*(graph.inputs or ()), *(each.name for each in read)} - set(graph.steps)
    unknown = next((name for name in given if name not in known), None)
    return (
        "" if unknown is None else f"no step reads the input {unknown!r}: {nearest(unknown, sorted(known))}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _as_object(text: str) -> Mapping[str, Any] | None:
    try:
        value = load_document(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def steps_again(text: str, graph: Graph, results: Mapping[str, StepResult]) -> tuple[str, ...]:
    """The steps that a later message has done again, with all that come after them.

    Raises:
        ToolError: it is no such message.
    """
    said = _as_object(text)
    if said is None or set(said) - {FROM} or not isinstance(named := said.get(FROM, []), list):
        raise ToolError(
            'this run has begun: say {"from": ["STEP"]} to go on from a step, or {} for all that are missing'
        )
    for name in named:
        if name not in graph.steps:
            raise ToolError(f"there is no step {name!r:.100}: {nearest(str(name), graph.steps)}")
    return graph.with_dependents(named or [name for name, each in results.items() if not each.is_settled])


def begin_order(state: Mapping[str, Any], order: str, text: str, graph: Graph) -> list[tuple[str, Any]]:
    """The changes of the state with which a message begins steps; none where it has begun them before.

    Raises:
        ToolError: the message makes no sense.
    """
    if state.get(ORDER) == order:
        return []
    if INPUTS not in state:
        return [(ORDER, order), (INPUTS, read_inputs(text, graph))]
    again = steps_again(text, graph, results_in(state, tuple(graph.steps)))
    rounds = state.get(ROUNDS) or {}
    return [
        (ORDER, order),
        (STEPS, dict.fromkeys(again)),
        (ROUNDS, {name: rounds.get(name, 1) + 1 for name in again}),
    ]
