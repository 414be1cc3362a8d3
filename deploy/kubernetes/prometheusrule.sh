#!/bin/sh
# Prints kvd's rules as a PrometheusRule, for clusters with the Prometheus operator:
#   sh deploy/kubernetes/prometheusrule.sh | kubectl apply -f -
set -eu
cat <<'EOF'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kvd
  namespace: kvd
  labels:
    app.kubernetes.io/name: kvd
spec:
EOF
sed 's/^./  &/' "$(dirname -- "$0")/../prometheus/kvd.rules.yml"
