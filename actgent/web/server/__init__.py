"""HTTP server of the gateway: listeners, connections, request framing, and relaying between cluster nodes."""
