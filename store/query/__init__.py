"""The query language: syntax tree, its JSON form, and the SQL that answers it."""
