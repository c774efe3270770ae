"""What was said for one turn alone, in the form that a journal keeps: a turn that goes on asks as it began."""

import json

import attrs

from actgent.journal.records import TurnOptions
from actgent.protocols.base import Protocol, WithOutput
from actgent.structured.output import Output, form_output

from .turn_future import CallOptions


def turn_options(
    output: Output | None,
    *,
    model: str | None,
    temperature: float | None,
    max_tokens: int | None,
    system: str | None,
    tail: str,
    deps: bool,
) -> TurnOptions | None:
    """Return the options given for one turn; None if there are none. Of deps only that there were some."""
    said = (output, model, temperature, max_tokens, system)
    if said == (None, None, None, None, None) and not tail and not deps:
        return None
    return TurnOptions(
        model=model,
        temperature=temperature,
        max_tokens=max_tokens,
        system=system,
        tail=tail,
        output=None if output is None else output.form,
        output_name="" if output is None else output.name,
        deps=deps,
    )


def restored_options(base: CallOptions, form: TurnOptions) -> CallOptions:
    """The agent's options, but for what was said for one turn. A value of a form comes as plain JSON data."""
    return attrs.evolve(
        base,
        protocol=base.protocol if form.output is None else _with_form(base.protocol, form),
        model=form.model,
        temperature=base.temperature if form.temperature is None else form.temperature,
        max_tokens=base.max_tokens if form.max_tokens is None else form.max_tokens,
        system=form.system,
        tail=form.tail,
        journal_form=form,
    )


def _with_form(protocol: Protocol, form: TurnOptions) -> Protocol:
    plain = protocol.inner if isinstance(protocol, WithOutput) else protocol
    return plain.with_output(form_output(form.output_name, json.loads(form.output or "{}")))
