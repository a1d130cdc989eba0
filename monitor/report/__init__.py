"""Reports as data, as JSON in their jobs and as pages."""
