"""What people do about a cluster from outside of its nodes."""
