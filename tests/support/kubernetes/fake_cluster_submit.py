"""Does what spark-submit does in cluster mode, as far as the API server sees it, and quickly.

``python fake_cluster_submit.py --master k8s://http://host:port --conf key=value ... APPLICATION
ARGUMENT...`` makes the driver's pod and, last, the config map that it cannot start without.
``$FAKE_SUBMIT`` is where it ends before its time: ``refuse`` makes nothing, ``half`` is killed
once the pod is made, ``late`` once all is; ``hang`` does not get to the pod, ``stall`` no further.
"""

import json
import os
import signal
import sys
import time
import urllib.request
from typing import Any

LABELS = "spark.kubernetes.driver.label."


def main() -> None:
    options, application, arguments = taken_apart(sys.argv[1:])
    conf = dict(one.split("=", 1) for one in options["--conf"])
    folder = (
        f"{options['--master'][0].removeprefix('k8s://')}/api/v1/namespaces/"
        f"{conf['spark.kubernetes.namespace']}"
    )
    how = os.environ.get("FAKE_SUBMIT", "")
    print("submitting", flush=True)
    if how == "refuse":
        sys.exit("Exception in thread main: no such image")
    while how == "hang":
        time.sleep(0.1)
    labels = {k.removeprefix(LABELS): v for k, v in conf.items() if k.startswith(LABELS)}
    name = conf["spark.kubernetes.driver.pod.name"]
    container = {
        "name": "spark-kubernetes-driver",
        "args": ["driver", "--properties-file", "/opt/spark/conf", application, *arguments],
    }
    volume = {"name": "conf", "configMap": {"name": f"{name}-conf-map"}}
    pod = {
        "metadata": {"name": name, "labels": {**labels, "spark-role": "driver"}},
        "spec": {"containers": [container], "volumes": [volume]},
    }
    made = ask("POST", f"{folder}/pods", pod)
    if how == "half":
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "stall":
        time.sleep(0.1)
    owner = {"name": name, "uid": made["metadata"]["uid"]}
    settings = {
        "metadata": {"name": volume["configMap"]["name"], "ownerReferences": [owner]},
        "data": {"conf": json.dumps(conf)},
    }
    ask("PATCH", f"{folder}/configmaps/{settings['metadata']['name']}", settings)
    if how == "late":
        # Whoever plays the kubelet needs a moment.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)


def taken_apart(words: list[str]) -> tuple[dict[str, list[str]], str, list[str]]:
    options: dict[str, list[str]] = {"--conf": []}
    while words and words[0].startswith("--"):
        options.setdefault(words[0], []).append(words[1])
        words = words[2:]
    return options, words[0], words[1:]


def ask(method: str, address: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(address, json.dumps(body).encode(), method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    main()
