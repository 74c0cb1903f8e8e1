"""Trajectories in: readers, windows, the normaliser, and the Maze2D collector."""
