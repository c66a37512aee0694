"""Independent float64 formulas. Nothing here imports the package."""
