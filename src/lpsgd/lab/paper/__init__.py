"""The paper as experiments: its tables as data, its figures, grids, claims and theory."""

PAPER_TITLE = (
    "Beyond l_2-norm and l_inf-norm: a curvature-inspired l_p-norm scheme for deep neural networks"
)
