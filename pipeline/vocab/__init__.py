"""Text shards to a vocabulary: `counting` -> `alphabet` and `merges` -> `tokenizer_files`."""
