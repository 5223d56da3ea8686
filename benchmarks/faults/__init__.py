"""What a federation survives, tried on real processes: `python -m benchmarks.faults`."""
