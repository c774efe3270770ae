"""Webhooks: signed HTTP notifications of session events, delivered at least once and each with a stable id."""
