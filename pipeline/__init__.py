"""Turns raw text into sentence pairs, as Apache Beam jobs, and `statistics` without Beam.

    shard        corpora -> text shards
    vocab        text shards -> vocabulary
    pairs        text shards + vocabulary -> pair shards
    statistics   pair shards -> counts of tokens and co-occurrences

How the code is laid out, from the command line down:

    cli, flags, options     the commands and the options of each job
    jobs/                   one module per job on Beam: options, plan, graph, what workers do, publication
    statistics              the job that runs without Beam
    readers/, shard/, near_duplicates/, words/, vocab/, pairs/
                            the algorithms, independent of Beam
    beam/                   flags to engines, jobs here and on engines, workers, signals, progress, logs
    exchange/               rows that must come together: run files, blocks, the shuffle of both
    commit/                 finished pieces to a finished folder, whatever is killed: leases, staging, publication
    inspection              `inspect` and `verify`, which run without Beam
"""
