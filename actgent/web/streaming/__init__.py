"""What goes on, as streams of numbered events."""
