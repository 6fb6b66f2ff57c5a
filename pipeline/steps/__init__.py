"""What a worker does with one element of a job's graph: reuse the result of an earlier attempt, or make and keep it.

The functions here connect the algorithms of shard/, vocab/ and pairs/ with the files in staging. Workers import them by
name, so a graph carries only their arguments.
"""
