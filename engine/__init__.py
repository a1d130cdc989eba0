"""Assembly: command line, settings, request pipeline, model repository, sessions, processes."""
