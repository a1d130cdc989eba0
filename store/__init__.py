"""Every inference kept and found again: journal, writer, database, query language, images."""
