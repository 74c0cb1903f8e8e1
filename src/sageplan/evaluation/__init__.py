"""How well a planner does, with and without the gate: paired episodes, their records, and honest statistics."""
