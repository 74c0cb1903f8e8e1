"""Is the energy a feasibility signal? The paper's two offline diagnostics, and what they are compared with."""
