"""Corpora in, clean text shards out: `inputs` -> `records` -> `cleaning` -> `sentences` -> `spread` -> `gather`."""
