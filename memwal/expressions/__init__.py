"""SQL expressions over columns: parser, normal form, bounds of values, region expressions."""
