"""Agents over HTTP: a gateway for programs, its tokens, and the server below it."""
