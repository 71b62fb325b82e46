"""The matrix of values that the chart is tested with."""

from typing import Any

from support.kubernetes.chart import Release

SPARK: dict[str, Any] = {"enabled": True, "resultsUri": "s3://lake/memwal/results"}
CONNECT: dict[str, Any] = {"enabled": True}
FLEET: dict[str, Any] = {"enabled": True}
VERIFY: dict[str, Any] = {"verify": {"table": "s3://lake/flights.lance"}}
WITHOUT_AIRFLOW: dict[str, Any] = {"enabled": False}
SECRETS: dict[str, Any] = {
    "env": {"AWS_REGION": "eu-central-1", "AWS_ENDPOINT": "https://store.example"},
    "secretEnv": {
        "AWS_ACCESS_KEY_ID": {"secret": "lake", "key": "access-key"},
        "AWS_SECRET_ACCESS_KEY": {"secret": "lake", "key": "secret-key"},
    },
    "secretFiles": [{"secret": "lake-options", "mountPath": "/etc/memwal/lake"}],
}
PLACEMENT: dict[str, Any] = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "jobs", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
                }
            ]
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "memwal"}},
        }
    ],
    "priorityClassName": "batch",
    "labels": {"cost-centre": "4711"},
    "annotations": {"example.com/reason": "upkeep"},
    "extraEnv": [{"name": "MEMWAL_EXTRA", "value": "yes"}],
    "extraVolumes": [{"name": "extra", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
}
OPERATOR: dict[str, Any] = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True, "labels": {"release": "prometheus"}},
}
AZURE = {"provider": "azure", "azure": {"clientId": "00000000-1111-2222-3333-444444444444"}}


def identity(provider: str, **settings: Any) -> dict[str, Any]:
    """Everything that has an identity."""
    return {
        "objectStore": {"identity": {"provider": provider, **settings}},
        "spark": SPARK,
        "fleet": FLEET,
        "tests": VERIFY,
    }


EVERYTHING: dict[str, Any] = {
    "commonLabels": {"team": "data"},
    "commonAnnotations": {"example.com/owner": "data"},
    "images": {"registry": "registry.example/data", "tag": "1.2.3", "pullSecrets": ["registry"]},
    "objectStore": {**SECRETS, "identity": AZURE},
    "spark": {
        **SPARK,
        "namespace": "jobs",
        "properties": {"spark.ui.enabled": False},
        "driver": {"limitCores": "2"},
        "executor": {"limitCores": "4", "pod": PLACEMENT},
    },
    "fleet": {**FLEET, "replicas": 2, "pod": PLACEMENT},
    "metrics": {
        "serviceAnnotations": {"prometheus.io/scrape": "true"},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "metrics.example",
            "tlsSecret": "metrics-tls",
        },
    },
    "prometheus": OPERATOR,
    "dashboard": {"enabled": True, "annotations": {"grafana_folder": "memwal"}},
    "airflow": {
        "settings": {"verify_tables_per_day": 10, "notify_conn_id": "slack", "due_watchers": 2},
        "triggerer": {"replicas": 2, "capacity": 1_000_000},
    },
    "tests": {
        "verify": {
            "table": "s3://lake/flights.lance",
            "storageOptionsFile": "/etc/memwal/lake/lake.json",
            "quick": False,
        }
    },
}

MATRIX: dict[str, Release] = {
    "defaults": Release(),
    "without Airflow": Release(values={"airflow": WITHOUT_AIRFLOW}),
    "fleet": Release(values={"airflow": WITHOUT_AIRFLOW, "fleet": FLEET}),
    "fleet, three pods": Release(values={"fleet": {**FLEET, "replicas": 3, "jobs": 4}}),
    "fleet by the clock": Release(values={"fleet": {**FLEET, "schedule": "*/5 * * * *"}}),
    "fleet without a budget": Release(
        values={"fleet": {**FLEET, "podDisruptionBudget": {"enabled": False}, "scratchSize": ""}}
    ),
    "many tables": Release(
        values={"fleet": {**FLEET, "tables": [f"table_{number}" for number in range(200)]}}
    ),
    "Spark": Release(values={"spark": SPARK}),
    "Spark in a namespace of its own": Release(
        values={"spark": {**SPARK, "namespace": "jobs"}, "fleet": FLEET}
    ),
    "Spark without Airflow": Release(
        values={"spark": {"enabled": True}, "airflow": WITHOUT_AIRFLOW}
    ),
    "Spark without a budget": Release(
        values={"spark": {**SPARK, "driver": {"podDisruptionBudget": {"enabled": False}}}}
    ),
    "Spark Connect": Release(values={"connect": CONNECT}),
    "Spark Connect for the fleet": Release(
        values={"connect": CONNECT, "fleet": FLEET, "airflow": WITHOUT_AIRFLOW}
    ),
    "Spark Connect for all": Release(
        values={
            "connect": {
                **CONNECT,
                "port": 15003,
                "cores": 4,
                "properties": {"spark.ui.enabled": True, "spark.ui.port": 4041},
                "pod": PLACEMENT,
            },
            "fleet": {**FLEET, "schedule": "@hourly"},
            "objectStore": SECRETS,
        }
    ),
    "Airflow's tasks in the scheduler": Release(
        values={"spark": SPARK, "airflow": {"executor": "LocalExecutor"}}
    ),
    "Airflow's tasks as pods": Release(
        values={"spark": SPARK, "airflow": {"executor": "KubernetesExecutor"}}
    ),
    "another Airflow": Release(
        values={
            "spark": SPARK,
            "airflow": {
                "releaseName": "flow",
                "serviceAccounts": ["tasks", "more-tasks"],
            },
        }
    ),
    "AWS role": Release(
        values=identity("aws", aws={"roleArn": "arn:aws:iam::123456789012:role/memwal"})
    ),
    "EKS Pod Identity": Release(values=identity("aws")),
    "Google account": Release(
        values=identity("gcp", gcp={"serviceAccount": "memwal@lake.iam.gserviceaccount.com"})
    ),
    "Google, directly": Release(values=identity("gcp")),
    "Azure": Release(values={**identity("none"), "objectStore": {"identity": AZURE}}),
    "secrets": Release(
        values={"objectStore": SECRETS, "spark": SPARK, "fleet": FLEET, "tests": VERIFY}
    ),
    "ingress": Release(
        values={"metrics": {"ingress": {"enabled": True, "host": "metrics.example"}}}
    ),
    "Prometheus operator": Release(values={"prometheus": OPERATOR, "dashboard": {"enabled": True}}),
    "no network policies": Release(
        values={"networkPolicy": {"enabled": False}, "spark": SPARK, "fleet": FLEET}
    ),
    "nobody scrapes": Release(values={"networkPolicy": {"prometheus": {"from": []}}}),
    "narrow ways out": Release(
        values={
            "spark": SPARK,
            "fleet": FLEET,
            "networkPolicy": {
                "catalog": {"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]},
                "objectStore": {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [9000]},
                "apiServer": {"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": [443]},
            },
        }
    ),
    "no migrations, tests and metrics": Release(
        values={
            "migrations": {"enabled": False},
            "tests": {"enabled": False},
            "metrics": {"enabled": False},
        }
    ),
    "accounts that are there": Release(
        values={
            "spark": SPARK,
            "fleet": FLEET,
            "serviceAccounts": {
                name: {"create": False, "name": f"our-{name}"}
                for name in ("driver", "tables", "catalog")
            },
        }
    ),
    "placement": Release(
        values={"spark": SPARK, "fleet": FLEET, "tests": VERIFY, "pod": PLACEMENT}
    ),
    "long names": Release(
        name="a-release-with-a-name-that-is-just-as-long-as-allowed",
        namespace="n" * 63,
        values={
            "spark": {**SPARK, "namespace": "s" * 63},
            "fleet": {**FLEET, "schedule": "@hourly"},
            "tests": VERIFY,
            "prometheus": OPERATOR,
            "dashboard": {"enabled": True},
        },
    ),
    "a name of its own": Release(values={"fullnameOverride": "lake-upkeep", "spark": SPARK}),
    "everything": Release(values=EVERYTHING, name="prod"),
}
