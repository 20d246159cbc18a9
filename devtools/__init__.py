"""The tools behind ``./dev``: servers, the stack, tests, checks. The product never imports them."""
