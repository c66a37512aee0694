"""The paper's convergence theory, measured: lemmas, constants, rates, and where it does not hold."""
