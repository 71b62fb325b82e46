"""Arguments of public calls: rows and keys in many forms, casts to table types, addresses."""
