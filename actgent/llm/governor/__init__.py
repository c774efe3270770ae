"""Who may call a provider next: its rate limits, what is under way, and who waits, shared by all clients of a key."""

from .governor import Governor, Permit, rate_limit_key, shared_governor
from .lending import ShareLender

__all__ = ["Governor", "Permit", "ShareLender", "rate_limit_key", "shared_governor"]
