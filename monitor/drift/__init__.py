"""Has what a model sees or answers changed? Tests whose false alarms are known, and stay few."""
