"""Spectra of runs: measuring them, and figures and tables from ``curvature.jsonl`` alone.

``options`` is light, ``measure`` needs torch, ``figures`` needs matplotlib.
"""
