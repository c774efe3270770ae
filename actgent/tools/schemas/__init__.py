"""What arguments a tool takes, and whether those of a call are such."""

from .checking import MAX_LEVELS, CheckedSchema, compile_schema, is_deep, plain_form
from .documented import documented_arguments, typed_arguments
from .schema import CompiledType, compile_signature, compile_type, description_of, parameter_texts, schema_of
from .validation import ArgumentsValidator

__all__ = [
    "MAX_LEVELS",
    "ArgumentsValidator",
    "CheckedSchema",
    "CompiledType",
    "compile_schema",
    "compile_signature",
    "compile_type",
    "description_of",
    "documented_arguments",
    "is_deep",
    "parameter_texts",
    "plain_form",
    "schema_of",
    "typed_arguments",
]
