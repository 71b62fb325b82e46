"""Folders of a local table: walked through symbolic links, emptied without them, held by identity.

One rule for symbolic links below the folder of a table, whose own path may contain any:

* what reads, writes or copies follows them, as Lance and every other program does, and a link that
  leads nowhere is an error that names it, never something absent;
* what deletes never follows them: see :mod:`memwal.storage.folders.delete`.
"""
