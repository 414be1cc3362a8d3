#!/bin/sh
# Prints kvd.yaml for nodes that share blocks by the Valkey of nodes.yaml:
#   sh deploy/kubernetes/valkey.sh | kubectl apply -f -
# For nodes with NVIDIA GPUs: sh deploy/kubernetes/gpu.sh | sh deploy/kubernetes/valkey.sh -
# The secret kvd-remote is to be there: nodes.yaml says how it is made.
set -eu
sed -e '/^    dram = /a\
    [remote]\
    servers = "cache-1:6379"\
    secret_file = "/etc/kvd-remote/secret"\
    password_file = "/etc/kvd-remote/password"' \
    -e '/^            - {name: sockets, /a\
            - {name: remote, mountPath: /etc/kvd-remote, readOnly: true}' \
    -e '/^          configMap: {name: kvd}$/a\
        - name: remote # for kvd alone\
          secret: {secretName: kvd-remote, defaultMode: 0400}' \
    "${1:-$(dirname -- "$0")/kvd.yaml}"
