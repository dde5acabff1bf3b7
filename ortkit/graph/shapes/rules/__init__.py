"""What each operator does to types, shapes and small contents; one file for a group of ops."""
