"""One file per drill: what breaks, what is expected, and when."""
