"""``make bench-overhead``: what protection costs a step while nothing fails."""
