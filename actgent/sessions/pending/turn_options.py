"""Model options of one turn, in the form that the journal stores. A resumed turn restores its options from them."""

import json

import attrs

from actgent.journal.record_types import TurnOptions
from actgent.messages import ToolSpec
from actgent.protocols.protocol_interface import Protocol, WithOutput
from actgent.structured_output.output_type import Output, output_of_schema

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
    tools: tuple[ToolSpec, ...] = (),
) -> TurnOptions | None:
    """Return the options of one turn in the format of the journal; None if no option is set.

    `deps` is True if deps were passed for the turn; the deps themselves are not stored.
    """
    options = (output, model, temperature, max_tokens, system)
    if options == (None, None, None, None, None) and not (tail or deps or tools):
        return None
    return TurnOptions(
        model=model,
        temperature=temperature,
        max_tokens=max_tokens,
        system=system,
        tail=tail,
        output=None if output is None else output.schema_text,
        output_name="" if output is None else output.name,
        deps=deps,
        tools=tools,
    )


def restored_options(base: CallOptions, form: TurnOptions) -> CallOptions:
    """Return the agent's call options `base`, changed by the recorded options of one turn (`form`).

    Typed output is returned as plain JSON data.
    """
    return attrs.evolve(
        base,
        protocol=base.protocol if form.output is None else _restore_output_form(base.protocol, form),
        model=form.model,
        temperature=base.temperature if form.temperature is None else form.temperature,
        max_tokens=base.max_tokens if form.max_tokens is None else form.max_tokens,
        system=form.system,
        tail=form.tail,
        tools=form.tools,
        journal_form=form,
    )


def _restore_output_form(protocol: Protocol, form: TurnOptions) -> Protocol:
    plain = protocol.inner if isinstance(protocol, WithOutput) else protocol
    return plain.with_output(output_of_schema(form.output_name, json.loads(form.output or "{}")))
