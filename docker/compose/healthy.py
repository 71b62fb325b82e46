"""Ask Airflow's API server for the health of a component; exit code 0 means healthy."""

import json
import os
import sys
import urllib.request


def main() -> int:
    """Check the component that the command line names, such as ``scheduler``."""
    execution_api = os.environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    url = execution_api.removesuffix("/execution/") + "/api/v2/monitor/health"
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the stack's own setting
        status = json.load(answer)[sys.argv[1]]["status"]
    print(status)
    return 0 if status == "healthy" else 1


if __name__ == "__main__":
    sys.exit(main())
