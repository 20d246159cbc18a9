"""Where the measured jobs leave their traces."""

PICKUPS = "bench:pickups"  # seconds from the call to the body
STARTS = "bench:starts"  # epoch seconds
RELEASED = "bench:released"  # those that are held may end
