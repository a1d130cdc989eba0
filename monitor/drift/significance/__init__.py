"""Statistics of two samples, their p-values and the decision to raise an alarm."""
