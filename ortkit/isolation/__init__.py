"""Jobs in processes of their own: a crash or a hang there costs the job and not the caller.

A job is a function and a dataclass. Its process is forked from a server that has Python, numpy
and the function's module imported, which takes longer than most jobs, or it is a new one.
"""
