"""What is this model, and why: from the files of its folder to a specification."""
