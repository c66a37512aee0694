"""What a search found: winners, figures and the page."""
