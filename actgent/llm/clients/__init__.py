"""Clients of providers: those with an API of their own, and those that speak OpenAI's."""

from .providers import COMPATIBLE

__all__ = ["COMPATIBLE"]
