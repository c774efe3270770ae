"""How one turn alone talks to the model, in the form that a journal keeps: a turn that goes on asks as it began."""

import json

import attrs

from actgent.journal.records import TurnOptions
from actgent.protocols.base import Protocol, WithOutput
from actgent.structured.output import Output, form_output

from .turn_future import CallOptions


def told_options(
    output: Output | None, *, temperature: float | None, max_tokens: int | None, system: str | None, tail: str
) -> TurnOptions | None:
    """What was said for one turn; None where nothing was."""
    if output is None and temperature is None and max_tokens is None and system is None and not tail:
        return None
    return TurnOptions(
        temperature=temperature,
        max_tokens=max_tokens,
        system=system,
        tail=tail,
        output=None if output is None else output.form,
        output_name="" if output is None else output.name,
    )


def restored_options(base: CallOptions, told: TurnOptions) -> CallOptions:
    """The agent's options, but for what was said for one turn. A value of a form comes as plain JSON data."""
    return attrs.evolve(
        base,
        protocol=base.protocol if told.output is None else _with_form(base.protocol, told),
        temperature=base.temperature if told.temperature is None else told.temperature,
        max_tokens=base.max_tokens if told.max_tokens is None else told.max_tokens,
        system=told.system,
        tail=told.tail,
        told=told,
    )


def _with_form(protocol: Protocol, told: TurnOptions) -> Protocol:
    plain = protocol.inner if isinstance(protocol, WithOutput) else protocol
    return plain.with_output(form_output(told.output_name, json.loads(told.output or "{}")))
