"""Clients of providers with their own API, and of providers with an OpenAI-compatible API."""

from .provider_table import COMPATIBLE

__all__ = ["COMPATIBLE"]
