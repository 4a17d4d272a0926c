"""``make bench-transfer``: one state moved between two processes in every way we have."""
