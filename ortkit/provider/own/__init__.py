"""The OrtkitExecutionProvider: fusion when a session is created."""
