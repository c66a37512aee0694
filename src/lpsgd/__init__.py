"""l_p-norm steepest descent for PyTorch."""
