"""What must survive a turn, and where it is written."""
