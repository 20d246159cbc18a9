"""The tools behind ``./dev``: real servers, the whole stack, tests and checks. The product never imports them."""
