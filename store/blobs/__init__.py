"""Storage of images under the hash of their content: as local files or in an object store."""
