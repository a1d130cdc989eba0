"""Requests on connections that are kept open, and when they are sent again."""
