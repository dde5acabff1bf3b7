"""How a launch begins that waits for the one before it from the start on, or begins after it.

Where it may do something before that `launch_early_kernel` stands in the place of this text.
"""

# mypy: ignore-errors
import triton


@triton.jit
def begin():
    """Wait for the launch before. What may be written by a launch is read after this."""
