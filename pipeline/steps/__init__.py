"""What a worker does with one element of a job's graph: find out whether an earlier attempt did it, do it, keep it.

The functions here join the algorithms of shard/, vocab/ and pairs/ to the files in staging. Workers import them by
name, so a graph carries only their arguments.
"""
