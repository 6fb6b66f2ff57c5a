"""What a word is, for counting and for encoding.

`rules` holds the rules as objects of the tokenizers library, `cut` applies them to many strings at once, and `arrow`
reads and makes columns of strings as arrays of bytes. pipeline/vocab/kinds.py says which vocabulary follows which.
"""
