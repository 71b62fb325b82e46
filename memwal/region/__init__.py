"""What a region is: its manifest, its spec and ids, the routing of rows, and its discovery."""
