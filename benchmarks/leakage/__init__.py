"""What a server learns of clients from what they send: the tables of docs/leakage.md."""
