"""Minimal pairs: does a masked language model find the acceptable one of two sentences more likely?"""
