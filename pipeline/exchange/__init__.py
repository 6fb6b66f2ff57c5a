"""The exchange: moves rows from the workers that make them to the workers that need them.

runs      run files: rows sorted by a 64-bit key, of which any range is read with one request
blocks    how rows are cut into blocks, sent, merged and read again
exchange  the exchange as a Beam transform
"""
