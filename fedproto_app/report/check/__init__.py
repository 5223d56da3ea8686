"""``fedproto data check``: show how a run would use the data."""
