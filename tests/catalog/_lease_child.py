"""A process that holds a lease, or wants one over and over.

``_lease_child.py hold URL SECONDS`` takes the lease of "t", prints its token, and then prints "in"
for every look that finds it in force; "lost" and the end when it is not. ``_lease_child.py count
URL FILE TIMES`` takes the lease so often, and each time adds one to the number in the file.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

from memwal.catalog import Catalog
from memwal.errors import ConflictError

mode, url, *rest = sys.argv[1:]
leases = Catalog(url).leases

if mode == "hold":
    lease = leases.acquire("t", ttl=timedelta(seconds=float(rest[0])))
    print(lease.token, flush=True)
    while True:
        try:
            lease.check()
        except ConflictError:
            print("lost", flush=True)
            break
        print("in", flush=True)
        time.sleep(0.02)
else:
    counter = Path(rest[0])
    for _ in range(int(rest[1])):
        with leases.acquire("t", ttl=timedelta(seconds=20), wait=timedelta(seconds=60)) as lease:
            number = int(counter.read_text())
            time.sleep(0.005)
            counter.write_text(str(number + 1))
            print(lease.token, flush=True)
