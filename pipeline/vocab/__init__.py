"""Turns text shards into word counts, and word counts into a vocabulary.

`counting` counts words on workers, by the rules in pipeline/words; `memory` determines whether they fit into memory;
`train` learns the tokens with `bpe` or `unigram`, and `extend` adds tokens to another vocabulary; `report` describes
how a vocabulary encodes its text; and `tokenizer_files` writes what other libraries load. `kinds` is the table of what
differs between the kinds of vocabularies, and `cut_words` follows it. The folder esm2 is a
vocabulary of ESM-2's letters.
"""
