"""How a launch begins that may do something before the one before it has ended, from sm_90 on.

Constant tensors alone may be read before this wait: of launches further before some may not have
ended. See `launch_plain_kernel`, in whose place this text stands.
"""

# mypy: ignore-errors
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin():
    """Let the next launch begin, and wait for the one before."""
    gdc_launch_dependents()
    gdc_wait()
