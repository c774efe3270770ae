"""`actgent demo`, and the model on loopback for those who have no key."""
