"""Commands of a run: its first message has the inputs, later messages select steps to rerun."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from actgent.errors import ToolError, did_you_mean_or_list
from actgent.support.strict_json import load_document

from .dependency_graph import Graph
from .pipeline_results import INPUTS, ORDER, ROUNDS, STEPS, StepResult, results_in

FROM = "from"
"""Key in a later message whose value names the steps to rerun."""


def read_inputs(text: str, graph: Graph) -> dict[str, Any]:
    """Parse the inputs of a run from its first message: a JSON object, or plain text for a single input.

    Raises:
        ToolError: The inputs do not match those that the steps read.
    """
    given, wanted = _parse_object(text), graph.read_inputs
    if given is None and len(wanted) == 1:
        given = {wanted[0]: text}
    if given is None:
        if wanted:
            raise ToolError(
                f"the inputs must be a JSON object with {_join_names(wanted)}, such as {{{json.dumps(wanted[0])}: ...}}"
            )
        given = {}
    if reason := input_error(given, graph):
        raise ToolError(reason)
    return dict(given)


def input_error(inputs: Mapping[str, Any], graph: Graph) -> str:
    """Return an error text if an input of a run is missing, or if no step reads an input; empty if the inputs are valid."""
    missing = [name for name in graph.read_inputs if name not in inputs]
    if missing:
        return f"the input {missing[0]!r} is missing: the steps read {_join_names(graph.read_inputs)}"
    read = (each for step in graph.steps.values() for each in step.references)
    known = {*(graph.inputs or ()), *(each.name for each in read)} - set(graph.steps)
    unknown = next((name for name in inputs if name not in known), None)
    return (
        ""
        if unknown is None
        else f"no step reads the input {unknown!r}: {did_you_mean_or_list(unknown, sorted(known))}"
    )


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _parse_object(text: str) -> Mapping[str, Any] | None:
    try:
        value = load_document(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def steps_to_rerun(text: str, graph: Graph, results: Mapping[str, StepResult]) -> tuple[str, ...]:
    """Return the steps that a message to an ended run selects, and all steps that depend on them.

    `text` is the message: a JSON object with step names under `from`. Without names, it selects all steps that failed or
    did not run.

    Raises:
        ToolError: The message is invalid.
    """
    command = _parse_object(text)
    if command is None or set(command) - {FROM} or not isinstance(named := command.get(FROM, []), list):
        raise ToolError(
            'this run has started already: send {"from": ["STEP"]} to rerun from a step, or {} to run all steps that failed or did not run'
        )
    for name in named:
        if name not in graph.steps:
            raise ToolError(
                f"the pipeline has no step {name!r:.100}: {did_you_mean_or_list(str(name), graph.steps)}"
            )
    return graph.with_dependents(named or [name for name, each in results.items() if not each.is_settled])


def command_changes(state: Mapping[str, Any], order: str, text: str, graph: Graph) -> list[tuple[str, Any]]:
    """Return the changes of the run's state with which a message starts or reruns steps.

    `order` is the id of the message, and `text` its content. The list is empty if the message was processed before.

    Raises:
        ToolError: The message is invalid.
    """
    if state.get(ORDER) == order:
        return []
    if INPUTS not in state:
        return [(ORDER, order), (INPUTS, read_inputs(text, graph))]
    again = steps_to_rerun(text, graph, results_in(state, tuple(graph.steps)))
    rounds = state.get(ROUNDS) or {}
    return [
        (ORDER, order),
        (STEPS, dict.fromkeys(again)),
        (ROUNDS, {name: rounds.get(name, 1) + 1 for name in again}),
    ]
