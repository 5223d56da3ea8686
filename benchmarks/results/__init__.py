"""The pages of docs/results whose tables summarise runs: a TOML file each, and one command."""
