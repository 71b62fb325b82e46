#!/bin/bash
# Entry point for Spark on Kubernetes, which calls it with "driver" or "executor" as first argument; any
# other command runs unchanged. Spark sets the variables in its pods.
set -euo pipefail

case "${1:-}" in
  driver)
    shift
    set -- "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?}" \
      --deploy-mode client "$@"
    ;;
  executor)
    shift
    # JVM options come as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ..., one argument each.
    options=()
    for ((i = 0; ; i++)); do
      name="SPARK_JAVA_OPT_$i"
      [[ -v $name ]] || break
      options+=("${!name}")
    done
    classpath="${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*"
    for more in "${SPARK_CLASSPATH:-}" "${SPARK_EXTRA_CLASSPATH:-}" "${SPARK_DIST_CLASSPATH:-}"; do
      classpath+="${more:+:$more}"
    done
    set -- "$JAVA_HOME/bin/java" "${options[@]}" \
      "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "$classpath" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "${SPARK_DRIVER_URL:?}" \
      --executor-id "${SPARK_EXECUTOR_ID:?}" \
      --cores "${SPARK_EXECUTOR_CORES:?}" \
      --app-id "${SPARK_APPLICATION_ID:?}" \
      --hostname "${SPARK_EXECUTOR_POD_IP:?}" \
      --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:?}" \
      --podName "${SPARK_EXECUTOR_POD_NAME:?}" "$@"
    ;;
esac

exec tini -s -- "$@"
