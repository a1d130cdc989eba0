"""The audit log: who changed, took away or was refused what, as lines of JSON in files of the data folder."""
