"""What is stored: inferences, their ids, metadata and errors, and whose they are.

`records` holds the data structures, `scope` what a caller may see. Nothing here opens a file or a database.
"""
