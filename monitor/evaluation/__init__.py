"""How good a model's answers are, against what is true: every number as its reference program gives it."""
