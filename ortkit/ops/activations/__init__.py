"""Recognition of activations, and their nodes by target."""
