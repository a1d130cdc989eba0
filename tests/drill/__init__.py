"""A drill: harm done to real servers under load, and a count of what was lost or stored twice."""
