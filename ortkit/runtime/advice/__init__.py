"""Threads and memory settings of a session, chosen by measuring them where it will run."""
