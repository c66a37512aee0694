"""Showing results: in the terminal, on pages for the browser, in figures and documents."""
