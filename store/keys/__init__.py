"""Access keys with their roles, teams and limits, and the shares of traffic, in the database."""
