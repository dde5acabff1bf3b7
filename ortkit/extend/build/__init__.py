"""Libraries of declared operators."""
