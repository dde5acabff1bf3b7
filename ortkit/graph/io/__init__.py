"""Models in files, in memory and as text: open, convert, encode, save."""
