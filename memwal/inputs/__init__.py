"""What callers hand in: rows and keys in many forms, casts to the types of a table, addresses."""
