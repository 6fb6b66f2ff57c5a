"""Turns raw text into sentence pairs, as Apache Beam jobs.

    shard        corpora -> text shards
    vocab        text shards -> vocabulary
    pairs        text shards + vocabulary -> pair shards
    statistics   pair shards -> counts of tokens and co-occurrences

How the code is laid out, from the command line down:

    cli, flags, options     the commands and the options of each job
    jobs/                   one module per job: checks the options, plans the work, runs the graph
    transforms/             the graphs: the only package that wires Beam transforms together
    steps/                  what a worker does with one element of a graph, and how a result is published
    readers/, shard/, near_duplicates/, words/, vocab/, pairs/
                            the algorithms, independent of Beam
    runtime/                starting Beam, resuming unfinished work, leases, progress, logs
    inspection              `inspect` and `verify`, which run without Beam
"""
