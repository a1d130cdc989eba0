"""Groups of methods about one kind of what the server has."""
