"""Where data sets come from: folders, downloads and their checksums."""
