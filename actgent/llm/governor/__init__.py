"""`Governor`: a rate limiter for model calls, shared by all clients with the same provider address and key."""

from .governor import Governor, Permit, rate_limit_key, shared_governor
from .limit_lease_client import LimitLeaseClient

__all__ = ["Governor", "LimitLeaseClient", "Permit", "rate_limit_key", "shared_governor"]
