"""A manifest for Kubernetes: an indexed Job whose pods are the hosts, and the names by which they meet.

It is written as JSON, which is YAML: `kubectl apply` takes it as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from sancus.errors import UserError
from sancus.jobs.job import Job

NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")  # of a service; a pod's has an index behind it
QUANTITY = re.compile(r"\d+(\.\d+)?([kMGTPE]i?|Ki)?")
PORT = 29500


@dataclass(frozen=True)
class Kubernetes:
    """Settings of Kubernetes."""

    image: str  # has sancus installed
    claim: str  # a volume that all pods can mount, with the graph in it
    mount: str = "/work"  # where pods see it: relative paths start there
    memory: str = "16Gi"  # of a pod
    name: str = "sancus"
    retries: int = 3  # pods that may fail before the job does

    def __post_init__(self) -> None:
        for flag, name in (("name", self.name), ("claim", self.claim)):
            if not NAME.fullmatch(name):
                raise UserError(
                    f"--{flag} {name}: Kubernetes wants small letters, digits and dashes, at most 52"
                )
        if not QUANTITY.fullmatch(self.memory):
            raise UserError(f"--memory {self.memory}: write it as Kubernetes does, e.g. 16Gi")
        if not self.mount.startswith("/"):
            raise UserError(f"--mount {self.mount}: must be a whole path, e.g. /work")
        if self.retries < 0:
            raise UserError(f"--retries {self.retries}: must not be negative")

    @property
    def usual_out(self) -> str:
        """By the job's name."""
        return f"runs/{self.name}"

    def script(self, job: Job) -> str:
        """The manifest of a headless service and an indexed job: pod 0 is where all meet."""
        if job.backend == "mpi":
            raise UserError(
                "--backend mpi: pods are started by torchrun, without mpiexec; leave --backend out"
            )
        items = [self._service(), self._job(job)]
        return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"

    def submit(self) -> list[str]:
        """`kubectl` reads the manifest."""
        return ["kubectl", "apply", "-f", "-"]

    def _service(self) -> dict[str, Any]:
        """Names for pods that are not ready yet, too: they meet before they are."""
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": self.name},
            "ports": [{"name": "meeting", "port": PORT}],
        }
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name}, "spec": spec}

    def _job(self, job: Job) -> dict[str, Any]:
        cpus = {} if job.size.cpus is None else {"cpu": str(job.size.cpus * job.size.ranks_per_node)}
        resources = cpus | {"memory": self.memory}
        container = {
            "name": "ranks",
            "image": self.image,
            "workingDir": self.mount,
            "command": ["bash", "-c", self._command(job)],
            "resources": {"requests": resources, "limits": resources},
            "volumeMounts": [{"name": "work", "mountPath": self.mount}],
        }
        pod = {
            "subdomain": self.name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 120,
            "containers": [container],
            "volumes": [{"name": "work", "persistentVolumeClaim": {"claimName": self.claim}}],
        }
        spec = {
            "completionMode": "Indexed",
            "completions": job.size.nodes,
            "parallelism": job.size.nodes,
            "backoffLimit": self.retries * job.size.nodes,  # when one fails, all do
            "template": {"spec": pod},
        }
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": spec}

    def _command(self, job: Job) -> str:
        """What a pod runs: torchrun itself is the container's process, so that SIGTERM reaches it."""
        meeting = f"--master-addr {self.name}-0.{self.name} --master-port {PORT}"
        size = f"--nnodes {job.size.nodes} --nproc-per-node {job.size.ranks_per_node}"
        start = f'exec torchrun {size} --node-rank "$JOB_COMPLETION_INDEX" {meeting} -m {job.train()}'
        return "\n".join(["set -euo pipefail", *job.threads(), *job.place.setup, start])
