"""Short-term memories, which select the messages that a model is shown, and long-term memories of owners."""
