"""Object stores of tables: local disks, S3, GCS, Azure and memory behind one small interface.

The protocol needs one thing from a store: a put-if-absent that is durable when it returns.
"""
