"""Commands about servers: agents over HTTP, and the MCP servers whose tools agents have."""
