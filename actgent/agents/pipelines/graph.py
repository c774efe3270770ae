"""Which steps come after which, and what is wrong with them before anything runs."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Any

import attrs

from actgent.errors import nearest
from actgent.structured.output import Output

from .conditions import When
from .references import Reference

Said = str | Mapping[str, Any] | list[Any]
"""What an agent is told, with references: a text, or a structure that it gets as JSON."""


class GraphStep(typing.Protocol):
    """A step as far as it is known without its agent: when it runs, what it is told, how often and how long it is tried."""

    @property
    def name(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def when(self) -> When | None: ...
    @property
    def said(self) -> Said | None: ...
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
    """The steps of a pipeline, by their names, and what they need."""

    steps: Mapping[str, GraphStep]
    """In the order in which they were written."""
    inputs: tuple[str, ...] | None = None
    """The names of the inputs that were declared; None: what is no step is one."""

    @property
    def read_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that steps read, each once; those that may be missing are not among them."""
        read = (each for step in self.steps.values() for each in step.references)
        return tuple(dict.fromkeys(r.name for r in read if r.name not in self.steps and not r.is_optional))

    def before(self, name: str) -> tuple[str, ...]:
        """The steps that one comes right after, each once."""
        step = self.steps[name]
        read = (each.name for each in step.references if each.name in self.steps)
        return tuple(dict.fromkeys((*step.after, *read)))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The steps in groups: those of a group need only groups before it, and may run side by side."""
        sorter = TopologicalSorter({name: self.before(name) for name in self.steps})
        sorter.prepare()
        groups, places = [], list(self.steps)
        while ready := sorter.get_ready():
            groups.append(tuple(sorted(ready, key=places.index)))
            sorter.done(*ready)
        return tuple(groups)

    def with_dependents(self, names: Sequence[str]) -> tuple[str, ...]:
        """Some steps, and all that come after them, in their order."""
        found = set(names)
        for group in self.groups:
            found |= {name for name in group if found & set(self.before(name))}
        return tuple(name for name in self.steps if name in found)

    # --- what is wrong -----------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Say what is wrong with the steps, one sentence each; nothing where they can run."""
        unknown = [*self._unknown_steps(), *self._wrong_references()]
        yield from unknown
        if unknown:
            return
        try:
            groups = self.groups
        except CycleError as error:
            circle = error.args[1]
            yield f"the steps wait for each other in a circle: {' -> '.join(circle)}; take one of these out of after= or of a message"
            return
        yield from self._unreachable(groups)

    def _unknown_steps(self) -> Iterator[str]:
        for step in self.steps.values():
            for name in step.after:
                if name not in self.steps:
                    yield f"step {step.name!r} comes after {name!r}, and there is no such step: {nearest(name, self.steps)}"

    def _wrong_references(self) -> Iterator[str]:
        for step in self.steps.values():
            for reference in dict.fromkeys(step.references):
                reason = self._refusal(step, reference)
                if reason:
                    yield f"step {step.name!r} reads {{{reference}}}: {reason}"

    def _refusal(self, step: GraphStep, reference: Reference) -> str:
        name = reference.name
        if name == step.name:
            return "a step cannot read its own output"
        if name not in self.steps:
            return self._input_refusal(reference)
        output = self.steps[name].output
        if output is not None and (missing := _missing_key(output.schema, reference.keys)):
            return f"the output= of step {name!r} has no {missing!r}"
        return ""

    def _input_refusal(self, reference: Reference) -> str:
        name, known = reference.name, (*self.steps, *(self.inputs or ()))
        if self.inputs is None and reference.keys:
            return f"there is no step {name!r} ({nearest(name, self.steps)}); an input with keys is declared by inputs=[{name!r}]"
        if self.inputs is not None and name not in self.inputs:
            return f"there is no step and no input {name!r}: {nearest(name, known)}"
        return ""

    def _unreachable(self, groups: Sequence[Sequence[str]]) -> Iterator[str]:
        """Name the steps that can never run, because what has to hold for them excludes itself."""
        needed: dict[str, tuple[When, ...]] = {}
        for name in (name for group in groups for name in group):
            step = self.steps[name]
            read = [r.name for r in step.read if r.name in self.steps and not r.is_optional]
            above = [condition for each in dict.fromkeys(read) for condition in needed[each]]
            own = [] if step.when is None else list(step.when.needed())
            needed[name] = _each_once((*above, *own))
            clash = next((pair for pair in combinations(needed[name], 2) if pair[0].excludes(pair[1])), None)
            if clash is not None:
                needed[name] = ()
                yield (
                    f"step {name!r} can never run: it needs both {str(clash[0])!r} and {str(clash[1])!r}; "
                    "read what may be missing as {name?}"
                )


def _each_once(conditions: Sequence[When]) -> tuple[When, ...]:
    """Conditions without those that are there before; their values need not be hashable."""
    return tuple(each for place, each in enumerate(conditions) if each not in conditions[:place])


def _missing_key(schema: object, keys: Sequence[str]) -> str:
    """The first of some keys that no value of a schema has; empty where all may be there."""
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
