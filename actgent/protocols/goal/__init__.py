"""The `goal` protocol: work towards a goal in a loop, until an evaluation finds it achieved."""
