"""``./dev drill``: rehearsed failures on the real stack, judged by an independent witness."""
