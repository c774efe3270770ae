"""Options that several commands share: limits, and where a conversation is kept."""
