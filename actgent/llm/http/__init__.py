"""Shared parts of the HTTP clients of all providers: requests, retries, streams, keys, errors and prices."""
