"""What a declaration of an operator says."""
