"""Linear probes: how much of a task can be read off each layer's vectors without changing them?"""
