"""Long work: jobs as folders of files, and the runner that does them."""
