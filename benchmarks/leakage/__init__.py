"""What a server learns from what clients send: the tables of docs/leakage.md."""
