"""`scripts/bench graph`: node counts, time and memory, side by side with the peers."""
