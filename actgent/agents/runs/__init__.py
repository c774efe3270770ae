"""What is said to an agent by those who wait for what comes of it."""
