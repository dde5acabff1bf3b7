"""Pages that show results in a browser: one file each, which loads nothing."""
