"""The paper's tables: as published, and as measured here."""
