"""What is on disk: the only place that reads and writes the laboratory's files."""
