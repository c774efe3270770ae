"""Structured output: JSON out of what a model writes, checked against the form that was asked for."""
