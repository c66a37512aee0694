"""The paper as experiments: its tables as data, its figures, grids, claims and theory."""
