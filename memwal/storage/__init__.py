"""Floor 2: the objects of a table, wherever they are.

One small interface over local disks, S3, GCS, Azure and memory. What the protocol needs of a
store is put-if-absent that is durable when it returns; everything else is convenience.
"""
