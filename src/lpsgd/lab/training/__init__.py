"""One run: a network, its optimizer and its epochs."""
