"""Text shards and a vocabulary to pair shards: `encoding` -> `pairing` -> `rows`, and `card` to look at the result."""
