"""`Governor`: a rate limiter for model calls, shared by all clients with the same provider address and key."""

from .governor import Governor, Permit, rate_limit_key, shared_governor
from .lending import ShareLender

__all__ = ["Governor", "Permit", "ShareLender", "rate_limit_key", "shared_governor"]
