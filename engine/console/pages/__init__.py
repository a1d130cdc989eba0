"""The pages, each in the file of its URL with its template beside it."""
