"""Runs the driver of a pod for real, as a process of this machine with a local Spark master.

What a node does for a driver's pod, as far as this goes: it waits for the config map, expands the
arguments, resolves the environment, runs what the image's entrypoint runs, keeps the log, and ends
the process when the pod is deleted.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.kubernetes.kubernetes_server import Pod

from memwal.spark.session import ensure_java

_LOCAL = {
    # What Spark said of the cluster's network does not hold here.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
    "spark.ui.enabled": "false",
}


@dataclass
class Kubelet:
    """A node.

    Attributes
    ----------
    folder : Path
        Where it keeps what it mounts.
    secrets : dict
        Values of Secrets, by name and key.
    environment : dict
        What the image sets.
    ran : dict
        Environment and command of the containers that it ran, by pod.
    """

    folder: Path
    secrets: dict[tuple[str, str], str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    ran: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def run(self, pod: Pod) -> None:
        """Run a pod to its end."""
        properties = self._mount(pod)
        (container,) = pod.body["spec"]["containers"]
        env = {
            **os.environ,
            **self.environment,
            **{one["name"]: self._value(one) for one in container["env"]},
            "SPARK_CONF_DIR": str(properties.parent),
            "SPARK_LOCAL_DIRS": str(self.folder),
        }
        ensure_java(env)
        words = [expanded(word, env) for word in container["args"]]
        assert words[0] == "driver"
        words[words.index("--properties-file") + 1] = str(properties)
        local = [word for item in _LOCAL.items() for word in ("--conf", "=".join(item))]
        binary = Path(sys.executable).parent / "spark-submit"
        command = [str(binary), "--master", "local[1]", "--deploy-mode", "client", *local]
        self.ran[pod.name] = {"env": env, "command": [*command, *words[1:]]}
        process = subprocess.Popen(
            [*command, *words[1:]],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes[pod.name] = process
        pod.run()
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if pod.exists:
                    pod.write(line.rstrip("\n"))
        code = process.wait()
        if pod.exists:
            pod.end(code)

    def end(self, pod: Pod) -> None:
        """End a pod's container."""
        process = self.processes.get(pod.name)
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        # All of a container ends with its first process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def _mount(self, pod: Pod) -> Path:
        (name,) = (
            volume["configMap"]["name"]
            for volume in pod.body["spec"]["volumes"]
            if "configMap" in volume
        )
        while ("configmaps", pod.namespace, name) not in pod.server.objects:
            time.sleep(0.1)
        path = self.folder / name / "spark.properties"
        path.parent.mkdir(parents=True)
        data = pod.server.objects["configmaps", pod.namespace, name]["data"]
        path.write_text(data["spark.properties"])
        return path

    def _value(self, one: dict[str, Any]) -> str:
        if "value" in one:
            return str(one["value"])
        source = one["valueFrom"]
        if "secretKeyRef" in source:
            return self.secrets[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
        return "127.0.0.1"


def expanded(word: str, env: dict[str, str]) -> str:
    """An argument as Kubernetes hands it on."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, word)
