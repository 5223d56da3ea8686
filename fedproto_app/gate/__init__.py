"""Programs that stand in for Flower's ``flwr-clientapp`` and ``flwr-serverapp``, and guard them.

A SuperExec starts one of these for each task, by its name on PATH. The gate is the machine owner's
own program: it looks at what came before any of it runs, starts that in a process apart, ends it in
time with all that it left behind, and writes down who asked what and what left.
"""
