"""The jobs as Beam graphs. This is the only package that wires Beam transforms together.

Bulk bytes go through files in staging, and only small reports go through Beam, because local runners keep every
element in memory. All outputs follow from what the functions are given: which worker ran them, in what order and how
often leaves no trace.

The job's last step publishes the result, on a worker: so a job on an engine finishes even when its launcher is gone.
"""
