"""Maintenance jobs: each plans tasks, runs them on a given runner, and adds up the results.

Names, from a policy to a result:

* :class:`~memwal.jobs.status.TableStatus`: the measures that a policy limits, read from a table;
* :class:`~memwal.jobs.due.Due`: the decision to run a job now, and why;
* a *task*, such as :class:`~memwal.jobs.merge.job.MergeTask`: a part of a job for one worker, small
  and picklable. Tasks of a job are disjoint;
* an *outcome*, such as :class:`~memwal.jobs.merge.commit.MergeOutcome`: the results of one task;
* :class:`~memwal.jobs.job.JobResult`: the results of the job;
* :class:`~memwal.jobs.job.JobRun`: the record of a run in a catalog.
"""
