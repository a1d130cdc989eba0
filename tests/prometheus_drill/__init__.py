"""A drill with a real Prometheus: its sums beside the clients' own counts, and every alert fired by its fault."""
