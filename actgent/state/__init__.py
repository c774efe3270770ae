"""What a session is: a value that reducers change, action by action."""
