"""What the next release brings."""
