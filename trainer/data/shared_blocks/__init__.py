"""Decoded shards in shared memory, read and checked once per node instead of once per rank."""
