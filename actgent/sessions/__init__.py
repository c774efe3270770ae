"""What a session is: its conversation, its state and its turn as data, and how they become durable. Starts no task."""
