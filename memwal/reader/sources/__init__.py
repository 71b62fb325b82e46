"""Sources of a read: snapshot, plan, pruning by the filter, routing of keys, open generations.

To leave out more generations by the filter, add the rule to ``pruning`` and call it in
``plan.ruled_out_regions``: scans, ``explain()`` and Spark follow.
"""
