"""Minimal pairs: counts how often a masked language model prefers the acceptable sentence of a pair."""
