"""One training loop, its checkpoints and its metrics: every learner uses them."""
