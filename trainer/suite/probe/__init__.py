"""Linear probes: how well can a linear classifier solve a task from the frozen vectors of each layer?"""
