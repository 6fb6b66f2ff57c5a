"""Text shards to a vocabulary.

`pretokenize` cuts text into words, `counting` counts them on workers, `train` (with `bpe`) trains the tokens,
`statistics` says what the vocabulary does to its text, and `tokenizer_files` writes what other libraries load.
"""
