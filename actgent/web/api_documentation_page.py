"""Renderer of the API documentation page at `/docs`: HTML from the OpenAPI document, without scripts and external resources."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]
STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d9dde4, #2e3640); --dim: light-dark(#545e6c, #9fa9b8);
  --panel: light-dark(#f6f7f9, #171b21); --accent: light-dark(#2456c7, #8ab0ff); }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; background: light-dark(#fff, #0f1216); color: light-dark(#1b2028, #e6e9ee);
  display: grid; grid-template-columns: 280px minmax(0, 1fr); }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 16px; border-right: 1px solid var(--line); font-size: 13px; }
nav ul { list-style: none; margin: 0 0 12px; padding: 0; }
nav a { text-decoration: none; overflow-wrap: anywhere; }
main { padding: 16px 32px 64px; max-width: 1000px; }
a { color: var(--accent); }
h2 { margin-top: 48px; border-bottom: 1px solid var(--line); }
h3 { margin: 32px 0 4px; }
code, pre { font: 13px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
pre { background: var(--panel); padding: 8px 12px; overflow: auto; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; margin: 8px 0; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); font-weight: normal; }
thead th, .dim, summary { color: var(--dim); }
td:first-child code { overflow-wrap: normal; }
@media (max-width: 800px) { body { display: block; } nav { position: static; height: auto; border: 0; } main { padding: 16px; } }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content security policy of the page: it has one style sheet and loads nothing."""
_BOUNDS = (
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "format",
)


def render_page(document: Schema) -> bytes:
    """Return the documentation page of an OpenAPI document as HTML in UTF-8."""
    operations = [
        (verb.upper(), path, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    tags = [each["name"] for each in document["tags"]]
    groups = {tag: [each for each in operations if tag in each[2]["tags"]] for tag in tags}
    schemas = document["components"]["schemas"]
    info = document["info"]
    link = '<a href="v1/openapi.json">openapi.json</a>'
    usage = f"Send a token as <code>Authorization: Bearer TOKEN</code>. {link} is the same as an OpenAPI 3.1 document."
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(info['title'])} API</title><style>{STYLE}</style></head><body>",
        _navigation(groups, schemas),
        f"<main><h1>{escape(info['title'])} API</h1><p>{escape(info['description'])}</p>",
        f"<p>{usage}</p>",
    ]
    for tag, members in groups.items():
        parts.append(f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>')
        parts += [_operation(verb, path, operation, document) for verb, path, operation in members]
    parts.append('<h2 id="schemas">schemas</h2>')
    parts += [_component(name, schema) for name, schema in schemas.items()]
    parts.append("</main></body></html>")
    return "\n".join(parts).encode()


def _navigation(groups: Mapping[str, Iterable[tuple[str, str, Schema]]], schemas: Schema) -> str:
    parts = ['<nav aria-label="Contents">']
    for tag, members in groups.items():
        links = "".join(
            f'<li><a href="#{operation["operationId"]}"><code>{verb} {escape(path.removeprefix("/v1"))}</code></a></li>'
            for verb, path, operation in members
        )
        parts.append(f'<a href="#{_anchor(tag)}"><b>{escape(tag)}</b></a><ul>{links}</ul>')
    names = "".join(f'<li><a href="#schema-{name}">{name}</a></li>' for name in schemas)
    return "".join([*parts, f'<a href="#schemas"><b>schemas</b></a><ul>{names}</ul></nav>'])


def _operation(verb: str, path: str, operation: Schema, document: Schema) -> str:
    scope = operation.get("x-scope")
    parts = [
        f'<section><h3 id="{operation["operationId"]}"><code>{verb} {escape(path)}</code></h3>',
        f"<p>{_text_html(operation['summary'])} {_text_html(operation.get('description', ''))} <span class=dim>",
        f"Scope: <code>{escape(scope)}</code>.</span></p>" if scope else "No token is needed.</span></p>",
    ]
    if operation["parameters"]:
        rows = [
            (
                f"<code>{escape(each['name'])}</code>",
                each["in"],
                _type_html(each["schema"]),
                _parameter_text(each),
            )
            for each in operation["parameters"]
        ]
        parts.append(_table(("parameter", "in", "type", "meaning"), rows))
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        parts.append(f"<p>Body: {_type_html(content['schema'])}</p>{_example(content)}")
    answers: list[tuple[str, str, str]] = []
    examples: list[str] = []
    for status, given in operation["responses"].items():
        answer = given
        if "$ref" in given:
            answer = document["components"]["responses"][given["$ref"].rpartition("/")[2]]
        answers.append(
            (
                f"<code>{status}</code>",
                " or ".join(_media_types_html(answer)),
                _text_html(answer["description"]),
            )
        )
        examples += [_example(each) for each in answer.get("content", {}).values() if status.startswith("2")]
    parts.append(_table(("status", "answer", "meaning"), answers))
    return "".join([*parts, *examples, "</section>"])


def _parameter_text(parameter: Schema) -> str:
    return _text_html(parameter.get("description") or parameter["schema"].get("description", ""))


def _media_types_html(answer: Schema) -> Iterator[str]:
    """Yield the media types of a response as HTML. JSON content is shown as the type of its schema."""
    for media, content in answer.get("content", {}).items():
        if "x-item-schema" in content:
            yield f"<code>{media}</code> of {_type_html(content['x-item-schema'])}"
        else:
            yield (
                f"<code>{media}</code>"
                if "contentMediaType" in content["schema"]
                else _type_html(content["schema"])
            )


def _component(name: str, schema: Schema) -> str:
    text = f'<section><h3 id="schema-{name}">{name}</h3><p>{_text_html(schema.get("description", ""))}</p>'
    if "properties" not in schema:
        return f"{text}<p>{_type_html(schema)}</p></section>"
    required = schema.get("required", ())
    rows = [
        (
            f"<code>{escape(field)}</code>{'' if field in required else ' <span class=dim>optional</span>'}",
            _type_html(each),
            _text_html(each.get("description", "")),
        )
        for field, each in schema["properties"].items()
    ]
    return f"{text}{_table(('field', 'type', 'meaning'), rows)}</section>"


def _type_html(schema: Schema) -> str:
    """Return the type that a JSON Schema describes as HTML, with its bounds and with links to components."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{name}">{name}</a>'
    if "allOf" in schema:
        return _type_html(schema["allOf"][0])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(f"<code>{escape(json.dumps(each))}</code>" for each in values)
    if "oneOf" in schema and "properties" not in schema:
        return " | ".join(map(_type_html, schema["oneOf"]))
    bounds = escape(", ".join(f"{name} {schema[name]}" for name in _BOUNDS if name in schema))
    html = _type_without_bounds(schema)
    return f"{html} <span class=dim>{bounds}</span>" if bounds else html


def _type_without_bounds(schema: Schema) -> str:
    """Return the type of a JSON Schema as HTML, with the types of fields or items, but without bounds."""
    if "properties" in schema:
        known = schema["properties"].items()
        return (
            "{" + ", ".join(f"<code>{escape(name)}</code>: {_type_html(each)}" for name, each in known) + "}"
        )
    if "items" in schema:
        return f"array of {_type_html(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type_html(schema['additionalProperties'])}"
    kinds = schema["type"]
    return str(kinds) if isinstance(kinds, str) else " | ".join(kinds)


def _example(content: Schema) -> str:
    if "example" not in content:
        return ""
    text = escape(json.dumps(content["example"], indent=2, ensure_ascii=False))
    return f"<details><summary>Example</summary><pre tabindex=0>{text}</pre></details>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th scope=col>{each}</th>" for each in heads)
    lines = "".join("<tr>" + "".join(f"<td>{each}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _text_html(text: str) -> str:
    """Return a plain text as HTML; parts in backquotes become `<code>` elements."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{each}</code>" if number % 2 else each for number, each in enumerate(pieces))


def _anchor(tag: str) -> str:
    return f"tag-{tag.replace(' ', '-')}"
