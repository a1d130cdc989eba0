"""Drift: statistical comparison of what a model sees and predicts with a baseline, with a known rate of false alarms."""
