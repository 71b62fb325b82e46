{{/* The pod of the fleet: {root, args, spec}; optional: container. */}}
{{- define "memwal.fleetPod" -}}
{{- $fleet := .root.Values.fleet -}}
{{- $args := concat (list "fleet" "run") .args (list
  "--jobs" ($fleet.jobs | toString)
  "--bytes" ($fleet.bytes | int64 | toString)
  "--lease-seconds" ($fleet.leaseSeconds | toString)) -}}
{{- range $fleet.tables -}}
{{- $args = concat $args (list "--table" .) -}}
{{- end -}}
{{- $connect := .root.Values.connect -}}
{{- if $connect.enabled -}}
{{- /* The image with the client of Connect begins with no command of its own. */ -}}
{{- $args = concat (list "memwal") $args (list "--spark-remote" (include "memwal.connectUrl" .root)) -}}
{{- end -}}
{{- include "memwal.pod" (dict
  "root" .root
  "component" "fleet"
  "image" (ternary "spark" "memwal" $connect.enabled)
  "pod" $fleet.pod
  "resources" $fleet.resources
  "account" (include "memwal.account" (dict "root" .root "account" "tables"))
  "store" true
  "scratchSize" $fleet.scratchSize
  "args" $args
  "container" .container
  "spec" (merge (dict "terminationGracePeriodSeconds" (int64 $fleet.terminationGracePeriodSeconds)) .spec)) -}}
{{- end }}
