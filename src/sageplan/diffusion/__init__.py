"""Diffusion models: noise schedules and the networks that undo them."""
