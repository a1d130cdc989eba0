"""What the server counts and tells of its requests: metrics, the request log, traces, readiness.

Counts lie in shared memory, so that any worker answers for all of them.
"""
