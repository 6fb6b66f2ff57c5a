"""Raw text to sentence pairs, as three Apache Beam jobs.

    shard   corpora -> text shards      (pipeline/shard)
    vocab   text shards -> vocabulary   (pipeline/vocab)
    pairs   text shards + vocabulary -> pair shards   (pipeline/pairs)

Each folder holds the pure functions of one job. Beam appears in `transforms.py`, which only wires them, and in
`beam_runner.py`, which starts what was wired.
"""
