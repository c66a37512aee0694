"""Files, JSON, TOML and locks: each read and written in one way."""
