"""Many runs: where they are executed, and what is shown of them meanwhile."""
