"""What schedules of drift and of evaluations share: due windows, files of their history, alerts."""
