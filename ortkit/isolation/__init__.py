"""Jobs in processes of their own: a crash or a hang there costs the job and not the caller.

`run_isolated` runs the `main` of a module in a process that is forked from a server. The server
has Python, numpy and the job's module imported, which takes longer than most jobs.
"""
