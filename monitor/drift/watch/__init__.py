"""Continuous monitoring of drift: schedules of reports, the history of windows, alerts."""
