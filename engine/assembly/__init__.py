"""Where the parts of a worker are put together: the application, and the store that it opens."""
