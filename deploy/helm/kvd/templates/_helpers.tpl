{{- define "kvd.labels" -}}
app.kubernetes.io/name: kvd
{{- end }}

{{- /* The configuration with what the chart decides. */ -}}
{{- define "kvd.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "paths" (merge (dict "runtime_dir" "/run/kvd") ($config.paths | default dict)) -}}
{{- if $config.remote.servers -}}
{{- $files := dict "secret_file" "/etc/kvd-remote/secret" "password_file" "/etc/kvd-remote/password" -}}
{{- $_ := set $config "remote" (merge $config.remote $files) -}}
{{- end -}}
{{- toJson $config -}}
{{- end }}

{{- /* TOML of nested maps, with dotted keys: a list of the map and of what stands before its keys. */ -}}
{{- define "kvd.toml" -}}
{{- $before := index . 1 -}}
{{- range $key, $value := index . 0 }}
{{- if kindIs "map" $value }}
{{- include "kvd.toml" (list $value (printf "%s%s." $before $key)) }}
{{- else }}
{{ $before }}{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A size in MiB. */ -}}
{{- define "kvd.mib" -}}
{{- if hasSuffix "GiB" . -}}
{{- mul 1024 (trimSuffix "GiB" . | int64) -}}
{{- else if hasSuffix "MiB" . -}}
{{- trimSuffix "MiB" . | int64 -}}
{{- else -}}
{{- fail (printf "set the sizes of config.pool in GiB or MiB, or `memory`: %s" .) -}}
{{- end -}}
{{- end }}

{{- /* At least what `kvd --print-unit` prints as MemoryMax. A GPU's memory counts for its tables alone. */ -}}
{{- define "kvd.memory" -}}
{{- $hbm := include "kvd.mib" .Values.config.pool.hbm | int64 -}}
{{- $dram := include "kvd.mib" .Values.config.pool.dram | int64 -}}
{{- $gpu := eq .Values.config.backend "cuda" -}}
{{- $beside := add 1024 (div (add $hbm $dram) 128) -}}
{{- printf "%dMi" (add $dram (ternary 2048 $hbm $gpu) $beside) -}}
{{- end }}
