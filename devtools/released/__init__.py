"""A task whose jobs one release begins and the next one ends."""
