"""Settings of the server: their names and defaults, and what reads them from files, variables and flags.

Below all other rooms: what stands here knows no model and no request.
"""
