"""The jobs as Beam graphs. This is the only package that wires Beam transforms together.

Bulk bytes go through files in staging, and only small reports go through Beam, because local runners keep every element
in memory. All outputs depend only on the functions' arguments, not on which worker ran a function, in what order or how
often.

The job's last step publishes the result, on a worker: so a job on an engine finishes even if its launcher is gone.
"""
