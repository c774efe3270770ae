"""`RateLimiter`: a rate limiter for model calls, shared by all clients with the same provider address and key."""

from .limit_lease_client import LimitLeaseClient
from .rate_limiter import Permit, RateLimiter, rate_limit_key, shared_rate_limiter

__all__ = ["LimitLeaseClient", "Permit", "RateLimiter", "rate_limit_key", "shared_rate_limiter"]
