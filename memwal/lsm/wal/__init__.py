"""Write-ahead log of a region: claim, append, read, applied steps, abandoned rows."""
