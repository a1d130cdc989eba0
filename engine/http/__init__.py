"""HTTP from the socket up: framing, bounds of connections, and the front that hands each request to its endpoint."""
