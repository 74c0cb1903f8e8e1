"""The gate: Stage I (encoder), Stage II (predictor), the energy, the selection rule, and what binds them."""
