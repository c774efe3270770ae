"""The server below the gateway: addresses, connections, and where requests begin and end."""
