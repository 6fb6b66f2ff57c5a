"""Readers of the files that benchmarks publish: each turns a file into examples or names the line that is wrong."""
