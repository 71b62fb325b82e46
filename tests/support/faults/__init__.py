"""Faults for tests: processes that die, disks that lose power, schedules of steps."""
