"""What a target is: a kind of machine, and which of that kind."""
