"""Structured output: finds JSON in a model's text, and validates it with the requested schema."""
