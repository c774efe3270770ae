"""JSON Schemas of tool arguments: derived from Python types, compiled, and used to validate calls.

The modules are imported with the first name that is used. They load three libraries (20 ms, 6 MB), which an agent without
tools does not need. Therefore other packages import this package, not its names: `schemas.compile_schema(...)`.
"""

import importlib

from .form_schemas import plain_form

__all__ = [
    "MAX_LEVELS",
    "ArgumentsValidator",
    "CompiledSchema",
    "CompiledType",
    "compile_schema",
    "compile_signature",
    "compile_type",
    "description_of",
    "is_deep",
    "parameter_texts",
    "plain_form",
    "schema_from_annotation",
    "schema_from_docstring",
    "schema_of",
]

# Type checkers read the same names in `__init__.pyi`; tests/test_repository.py compares the two.
_NAMES = {
    "docstring_schema": ("schema_from_annotation", "schema_from_docstring"),
    "schema_validation": ("MAX_LEVELS", "CompiledSchema", "compile_schema", "is_deep"),
    "python_types": (
        "CompiledType",
        "compile_signature",
        "compile_type",
        "description_of",
        "parameter_texts",
        "schema_of",
    ),
    "argument_validation": ("ArgumentsValidator",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
