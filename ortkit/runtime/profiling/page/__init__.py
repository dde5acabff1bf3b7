"""The page of a profile: what it holds, and how it is drawn."""
