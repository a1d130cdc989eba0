"""Queries: the forms of filters, the plan of a filter, and its SQL."""
