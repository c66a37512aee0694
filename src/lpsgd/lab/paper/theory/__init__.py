"""The paper's convergence theory, measured: lemmas, constants, rates, and where they fail."""
