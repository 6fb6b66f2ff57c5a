"""Readers of the file formats of published benchmarks: each returns examples or reports the line that is wrong."""
