# The names of `__init__.py`, for type checkers.

from .argument_validation import ArgumentsValidator as ArgumentsValidator
from .docstring_schema import (
    schema_from_annotation as schema_from_annotation,
    schema_from_docstring as schema_from_docstring,
)
from .form_schemas import plain_form as plain_form
from .python_types import (
    CompiledType as CompiledType,
    compile_signature as compile_signature,
    compile_type as compile_type,
    description_of as description_of,
    parameter_texts as parameter_texts,
    schema_of as schema_of,
)
from .schema_validation import (
    MAX_LEVELS as MAX_LEVELS,
    CompiledSchema as CompiledSchema,
    compile_schema as compile_schema,
    is_deep as is_deep,
)
