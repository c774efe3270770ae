"""The parts that the system prompts of several protocols share; jinja2 over `profile`, written by developers."""

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
