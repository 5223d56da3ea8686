"""What hostile clients reach, by rule of aggregation: the tables of docs/robust.md."""
