{{/*
Environment of Airflow: where its DAGs are, and section [memwal] of its configuration. One's own DAGs
stay in the folder of Airflow's chart.
*/}}
{{- define "memwal.airflowEnv" -}}
{{- $bundle := "airflow.dag_processing.bundles.local.LocalDagBundle" -}}
{{- $found := dict
  "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST" (list
    (dict "name" "dags-folder" "classpath" $bundle "kwargs" dict)
    (dict "name" "memwal" "classpath" $bundle "kwargs" (dict "path" "/opt/memwal/dags")) | toJson)
  "MEMWAL_CATALOG_SNAPSHOT" (include "memwal.snapshotPath" .)
  "AIRFLOW__MEMWAL__SPARK_APPS_FOLDER" "/opt/memwal/spark_apps"
  "AIRFLOW__TRIGGERER__CAPACITY" (.Values.airflow.triggerer.capacity | int64 | toString)
-}}
{{- if .Values.spark.enabled -}}
{{- $found = mergeOverwrite $found (dict
  "AIRFLOW__MEMWAL__DEPLOY_MODE" "cluster"
  "AIRFLOW__MEMWAL__SPARK_MASTER" "k8s://https://kubernetes.default.svc"
  "AIRFLOW__MEMWAL__SPARK_APPS_FOLDER" "local:///opt/memwal/spark_apps"
  "AIRFLOW__MEMWAL__SPARK_PROPERTIES_FILE" "/etc/memwal/spark/spark.properties"
  "AIRFLOW__MEMWAL__KUBERNETES_NAMESPACE" (include "memwal.sparkNamespace" .)
  "AIRFLOW__MEMWAL__RESULTS_URI" .Values.spark.resultsUri) -}}
{{- end -}}
{{- if .Values.connect.enabled -}}
{{- $_ := set $found "AIRFLOW__MEMWAL__SPARK_MASTER" (include "memwal.connectUrl" .) -}}
{{- end -}}
{{- range $name, $value := .Values.objectStore.env -}}
{{- $_ := set $found $name $value -}}
{{- end -}}
{{- range $name, $value := .Values.airflow.settings -}}
{{- $variable := printf "AIRFLOW__MEMWAL__%s" (upper $name) -}}
{{- if hasKey $found $variable -}}
{{- fail (printf "airflow.settings: the chart sets %s itself, by the values of spark and connect" $name) -}}
{{- end -}}
{{- $_ := set $found $variable ($value | toString) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end }}
