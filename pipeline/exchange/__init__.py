"""The exchange moves rows from the workers that make them to the workers that need them.

`runs` has run files: rows sorted by a 64-bit key, of which any range is read with one request. `blocks` cuts rows into
blocks, sends, merges and reads them: begin there. `exchange` is the whole as a Beam transform.
"""
