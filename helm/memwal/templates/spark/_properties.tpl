{{/*
Spark's properties, as a dictionary. Secrets are named here and never contained: Spark shows its
properties in its UI and in event logs.
*/}}
{{- define "memwal.sparkProperties" -}}
{{- $values := .Values.spark -}}
{{- $found := dict
  "spark.kubernetes.namespace" (include "memwal.sparkNamespace" .)
  "spark.kubernetes.container.image" (include "memwal.image" (dict "root" . "image" "spark"))
  "spark.kubernetes.container.image.pullPolicy" .Values.images.pullPolicy
  "spark.kubernetes.authenticate.driver.serviceAccountName" (include "memwal.account" (dict "root" . "account" "driver"))
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "memwal.account" (dict "root" . "account" "tables"))
  "spark.kubernetes.driver.podTemplateFile" "/etc/memwal/spark/driver.yaml"
  "spark.kubernetes.executor.podTemplateFile" "/etc/memwal/spark/executor.yaml"
  "spark.driver.cores" $values.driver.cores
  "spark.driver.memory" $values.driver.memory
  "spark.driver.memoryOverhead" $values.driver.memoryOverhead
  "spark.executor.cores" $values.executor.cores
  "spark.executor.memory" $values.executor.memory
  "spark.executor.memoryOverhead" $values.executor.memoryOverhead
  "spark.dynamicAllocation.enabled" true
  "spark.dynamicAllocation.shuffleTracking.enabled" true
  "spark.dynamicAllocation.minExecutors" $values.executor.min
  "spark.dynamicAllocation.maxExecutors" $values.executor.max
  "spark.dynamicAllocation.executorIdleTimeout" (printf "%ds" (int $values.executor.idleSeconds))
-}}
{{/* Storage options travel inside tasks. */}}
{{- range list "spark.authenticate" "spark.network.crypto.enabled" "spark.io.encryption.enabled" -}}
{{- $_ := set $found . true -}}
{{- end -}}
{{/* Network policies name these. */}}
{{- $_ := set $found "spark.driver.port" 7078 -}}
{{- $_ := set $found "spark.blockManager.port" 7079 -}}
{{- $_ := set $found "spark.driver.blockManager.port" 7079 -}}
{{/* Without these the driver would need rights to config maps, services and volume claims. The
service belongs to the driver's pod and goes with it. */}}
{{- $_ := set $found "spark.kubernetes.executor.disableConfigMap" true -}}
{{- $_ := set $found "spark.kubernetes.driver.service.deleteOnTermination" false -}}
{{- $_ := set $found "spark.kubernetes.driver.ownPersistentVolumeClaim" false -}}
{{- $_ := set $found "spark.kubernetes.driver.reusePersistentVolumeClaim" false -}}
{{/* Spark would make a network policy for each application, and whoever submits need the right to change
those of the namespace. The chart has its own. */}}
{{- $_ := set $found "spark.kubernetes.driver.pod.excludedFeatureSteps" "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep" -}}
{{- with .Values.images.pullSecrets -}}
{{- $_ := set $found "spark.kubernetes.container.image.pullSecrets" (join "," .) -}}
{{- end -}}
{{- with $values.driver.limitCores -}}
{{- $_ := set $found "spark.kubernetes.driver.limit.cores" . -}}
{{- end -}}
{{- with $values.executor.limitCores -}}
{{- $_ := set $found "spark.kubernetes.executor.limit.cores" . -}}
{{- end -}}
{{- range $name, $value := .Values.objectStore.env -}}
{{- $_ := set $found (printf "spark.kubernetes.driverEnv.%s" $name) $value -}}
{{- $_ := set $found (printf "spark.executorEnv.%s" $name) $value -}}
{{- end -}}
{{- range $name, $from := .Values.objectStore.secretEnv -}}
{{- range list "driver" "executor" -}}
{{- $_ := set $found (printf "spark.kubernetes.%s.secretKeyRef.%s" . $name) (printf "%s:%s" $from.secret $from.key) -}}
{{- end -}}
{{- end -}}
{{- range .Values.objectStore.secretFiles -}}
{{- $_ := set $found (printf "spark.kubernetes.driver.secrets.%s" .secret) .mountPath -}}
{{- end -}}
{{- range $name, $value := $values.properties -}}
{{- if hasKey $found $name -}}
{{- fail (printf "spark.properties: the chart sets %s itself; use the value that it comes from (see README.md of the chart)" $name) -}}
{{- end -}}
{{- $_ := set $found $name $value -}}
{{- end -}}
{{- toYaml $found -}}
{{- end }}

{{/* Template of a pod of Spark: {root, component, pod, token}; optional: scratchSize. */}}
{{- define "memwal.sparkPod" -}}
{{- $values := include "memwal.podValues" . | fromYaml -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "memwal.podLabels" . | nindent 4 }}
  {{- with mergeOverwrite (dict) .root.Values.commonAnnotations $values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: {{ .token }}
  enableServiceLinks: false
  securityContext:
    {{- include "memwal.podSecurity" 185 | nindent 4 }}
  {{- with include "memwal.placement" . | trim }}{{ . | nindent 2 }}{{ end }}
  containers:
    # The name that Spark gives it without a template.
    - name: spark-kubernetes-{{ .component }}
      # The image's own folders cannot be written to.
      workingDir: /tmp
      env:
        {{- include "memwal.scratchEnv" . | nindent 8 }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      securityContext:
        {{- include "memwal.containerSecurity" . | nindent 8 }}
      volumeMounts:
        # By this name Spark knows the volume as its own scratch space.
        - name: spark-local-dir-1
          mountPath: /tmp
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "memwal.scratch" (dict "name" "spark-local-dir-1" "size" .scratchSize) | nindent 4 }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
