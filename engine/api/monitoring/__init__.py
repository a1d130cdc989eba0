"""Routes of evaluations, drift, their alarms and their schedules."""
