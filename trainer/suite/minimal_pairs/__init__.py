"""Minimal pairs: how often does a masked language model prefer the acceptable sentence of two?"""
