"""The rehearsed side of ``./dev drill``: jobs that tell a witness what they do, and when."""
