"""Filters as SQL: ids of what they name, predicates, the plan that drives a search, and the search itself."""
