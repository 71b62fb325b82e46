"""Folders of a local table: walked through symbolic links, emptied without them, held by identity.

One rule for symbolic links below the folder of a table, whose own path may contain any:

* reads, writes and copies follow them, as Lance and every other program does, and a link that leads
  nowhere is an error that names it, never something absent;
* deletions never follow them: see :mod:`memwal.storage.folders.delete`.
"""
