"""The parts that the system prompts of several protocols share; jinja2 over `profile`, written by developers."""

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def fill_template(template: str, values: Mapping[str, object]) -> str:
    """A short text with its `{{name}}` replaced by their values, which are never read as a template.

    Placeholders without a value stay as they are.
    """
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), template)


WHO = """\
You are {{ profile.name }}{% if profile.role %}, {{ profile.role }}{% endif %}.
{% if profile.goal %}
Your goal: {{ profile.goal }}
{% endif %}
{% if profile.capabilities %}
What you can do: {{ profile.capabilities }}
{% endif %}
{% if profile.body %}

{{ profile.body }}
{% endif %}
"""

TYPES = """\
{% for type in profile.types %}
- {{ type.name }}{% if type.description %}: {{ type.description }}{% endif %}

{% if type.schema %}
{{ type.schema | json }}
{% endif %}
{% endfor %}
"""
"""Each classification type with its form; `"<...>"` in a form stands for a value."""
