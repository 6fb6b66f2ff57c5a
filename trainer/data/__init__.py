"""Rows and masks as a pure function of (data, seed, step): `order` -> `reading` -> `batches`."""
