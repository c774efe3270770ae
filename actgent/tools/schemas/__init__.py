"""What arguments a tool takes, and whether those of a call are such."""

from .checking import MAX_LEVELS, CheckedSchema, check_form, compile_schema, is_deep
from .documented import documented_arguments, typed_arguments
from .schema import CompiledType, compile_signature, compile_type, description_of, parameter_texts, schema_of
from .validation import ArgumentsValidator

__all__ = [
    "MAX_LEVELS",
    "ArgumentsValidator",
    "CheckedSchema",
    "CompiledType",
    "check_form",
    "compile_schema",
    "compile_signature",
    "compile_type",
    "description_of",
    "documented_arguments",
    "is_deep",
    "parameter_texts",
    "schema_of",
    "typed_arguments",
]
