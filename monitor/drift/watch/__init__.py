"""A model watched: schedules of drift reports, the history of its windows, alerts."""
