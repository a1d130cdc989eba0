"""Images, kept by their content: as files here, or in an object store."""
