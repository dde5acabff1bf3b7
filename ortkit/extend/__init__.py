"""What a user's own code plugs into ortkit."""
