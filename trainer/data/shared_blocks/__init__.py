"""Decoded shards in shared memory, read and checked once a node instead of once a rank."""
