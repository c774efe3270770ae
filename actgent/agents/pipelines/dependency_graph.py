"""Dependencies of pipeline steps: the order of the steps, and their errors, which are found before a run."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Any

import attrs

from actgent.errors import did_you_mean_or_list
from actgent.structured_output.output_type import Output

from .step_conditions import When
from .step_output_references import Reference

MessageTemplate = str | Mapping[str, Any] | list[Any]
"""Message with references: a text, or a structure that the agent gets as JSON."""


class GraphStep(typing.Protocol):
    """A step of a pipeline without its agent: condition, message, output type, retries and timeout."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def when(self) -> When | None: ...
    @property
    def template(self) -> MessageTemplate | None: ...
    @property
    def read(self) -> tuple[Reference, ...]: ...
    @property
    def references(self) -> tuple[Reference, ...]: ...
    @property
    def output(self) -> Output | None: ...
    @property
    def retries(self) -> int: ...
    @property
    def timeout(self) -> float | None: ...


@attrs.frozen
class Graph:
    """Steps of a pipeline and their dependencies."""

    steps: Mapping[str, GraphStep]
    """Steps by name, in the order of their definition."""
    inputs: tuple[str, ...] | None = None
    """Names of the declared inputs of a run. None: each referenced name that is not a step is an input."""

    @property
    def read_inputs(self) -> tuple[str, ...]:
        """Names of the inputs that steps read and that a run must have, without duplicates."""
        read = (each for step in self.steps.values() for each in step.references)
        return tuple(dict.fromkeys(r.name for r in read if r.name not in self.steps and not r.is_optional))

    def before(self, name: str) -> tuple[str, ...]:
        """Return the names of the steps that the step `name` directly depends on, without duplicates."""
        step = self.steps[name]
        read = (each.name for each in step.references if each.name in self.steps)
        return tuple(dict.fromkeys((*step.after, *read)))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the steps in groups. The steps of a group depend only on earlier groups and can run concurrently."""
        sorter = TopologicalSorter({name: self.before(name) for name in self.steps})
        sorter.prepare()
        groups, names = [], list(self.steps)
        while ready := sorter.get_ready():
            groups.append(tuple(sorted(ready, key=names.index)))
            sorter.done(*ready)
        return tuple(groups)

    def with_dependents(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the given steps and all steps that depend on them, in the order of their definition."""
        found = set(names)
        for group in self.groups:
            found |= {name for name in group if found & set(self.before(name))}
        return tuple(name for name in self.steps if name in found)

    # --- errors -----------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Yield an error text for each unknown name, invalid reference and cycle, and for each step that can never run."""
        unknown = [*self._unknown_steps(), *self._invalid_references()]
        yield from unknown
        if unknown:
            return
        try:
            groups = self.groups
        except CycleError as error:
            circle = error.args[1]
            yield f"the steps depend on each other in a cycle: {' -> '.join(circle)}; remove one of these from after= or from a message"
            return
        yield from self._unreachable_step_errors(groups)

    def _unknown_steps(self) -> Iterator[str]:
        for step in self.steps.values():
            for name in step.after:
                if name not in self.steps:
                    yield f"step {step.name!r} comes after {name!r}, which is not a step: {did_you_mean_or_list(name, self.steps)}"

    def _invalid_references(self) -> Iterator[str]:
        for step in self.steps.values():
            for reference in dict.fromkeys(step.references):
                reason = self._reference_error(step, reference)
                if reason:
                    yield f"step {step.name!r} reads {{{reference}}}: {reason}"

    def _reference_error(self, step: GraphStep, reference: Reference) -> str:
        name = reference.name
        if name == step.name:
            return "a step cannot read its own output; if the value is an input of the run, rename the step or the input"
        if name not in self.steps:
            return self._input_reference_error(reference)
        output = self.steps[name].output
        if output is not None and (missing := _missing_key(output.schema, reference.keys)):
            return f"the output= of step {name!r} has no {missing!r}"
        return ""

    def _input_reference_error(self, reference: Reference) -> str:
        name, known = reference.name, (*self.steps, *(self.inputs or ()))
        if self.inputs is None and reference.keys:
            return f"unknown step {name!r} ({did_you_mean_or_list(name, self.steps)}); an input with keys is declared by inputs=[{name!r}]"
        if self.inputs is not None and name not in self.inputs:
            return f"unknown step or input {name!r}: {did_you_mean_or_list(name, known)}"
        return ""

    def _unreachable_step_errors(self, groups: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield an error text for each step that can never run, because its conditions exclude each other.

        The conditions are that of the step, and those of the steps whose outputs it must read. `groups` has the names of the
        steps in an order of execution.
        """
        needed: dict[str, tuple[When, ...]] = {}
        for name in (name for group in groups for name in group):
            step = self.steps[name]
            read = [r.name for r in step.read if r.name in self.steps and not r.is_optional]
            above = [condition for each in dict.fromkeys(read) for condition in needed[each]]
            own = [] if step.when is None else list(step.when.needed())
            needed[name] = _without_duplicates((*above, *own))
            clash = next((pair for pair in combinations(needed[name], 2) if pair[0].excludes(pair[1])), None)
            if clash is not None:
                needed[name] = ()
                yield (
                    f"step {name!r} can never run: it needs both {str(clash[0])!r} and {str(clash[1])!r}; "
                    "read what may be missing as {name?}"
                )


def _without_duplicates(conditions: Sequence[When]) -> tuple[When, ...]:
    """Return conditions without duplicates, in order. The values in the conditions may be unhashable."""
    return tuple(each for index, each in enumerate(conditions) if each not in conditions[:index])


def _missing_key(schema: object, keys: Sequence[str]) -> str:
    """Return the first key on the path `keys` that a JSON Schema does not allow; empty if the schema allows all keys."""
    for key in keys:
        if (
            not isinstance(schema, Mapping)
            or "properties" not in schema
            or schema.get("additionalProperties")
        ):
            return ""
        if key not in schema["properties"]:
            return key
        schema = schema["properties"][key]
    return ""
