"""The way to a gateway over HTTP."""
