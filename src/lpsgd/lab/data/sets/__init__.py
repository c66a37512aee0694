"""The data sets themselves, one module for each format."""
