"""Text shards to a vocabulary.

`pretokenize` cuts text into words, `counting` counts them on workers, `train` (with `bpe`) learns the tokens,
`statistics` says what the vocabulary does to its text, and `tokenizer_files` writes what tokenizers and transformers load.
"""
