"""What the next release has no more."""
