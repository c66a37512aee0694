"""One module for each command; each must be importable without torch, so that ``--help`` is instant."""
