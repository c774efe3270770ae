"""Instructions, as developers write them, as the types that prompts and classifiers know."""

from collections.abc import Mapping, Sequence

from actgent.errors import ConfigurationError
from actgent.structured.schemas import is_json_schema
from actgent.tools.checking import compile_schema

from .base import ClassificationType, Instruction


def types_from(instructions: Sequence[Instruction]) -> tuple[ClassificationType, ...]:
    """The classification types of instructions, in their order.

    Raises:
        ConfigurationError: a name is empty or there twice, or a schema is not usable.
    """
    names = [instruction.name for instruction in instructions]
    for name in names:
        if not name.strip() or names.count(name) > 1:
            raise ConfigurationError(
                f"instruction {name!r}: each needs a name of its own, and not an empty one"
            )
    return tuple(map(_type_from, instructions))


def _type_from(instruction: Instruction) -> ClassificationType:
    schema = instruction.schema if instruction.schema is not None else {}
    if not isinstance(schema, Mapping):
        raise ConfigurationError(f"the schema of instruction {instruction.name!r} is no object")
    if is_json_schema(schema):
        compile_schema(schema, owner=f"instruction {instruction.name!r}")
    return ClassificationType(
        name=instruction.name, description=instruction.description, schema=schema, tool=instruction.tool
    )
