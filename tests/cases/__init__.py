"""What people reported, and what they expect. Their files are in `benchmarks.file_forms`."""
