"""HTTP transport of the client."""
