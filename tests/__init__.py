"""All tests. Each process computes on one thread, because there is a process for each processor."""

import os

# Read when numpy and torch are imported. Threads of several processes would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
