#!/bin/sh
# Prints kvd.yaml for nodes with NVIDIA GPUs, where NVIDIA's container toolkit is the runtime class "nvidia":
#   sh deploy/kubernetes/gpu.sh | kubectl apply -f -
# kvd sees the GPUs of its node without taking one from the scheduler: engines' pods do that.
set -eu
sed -e 's/^    backend = "host"$/    backend = "cuda"/' \
    -e 's/^      hostPID: true$/&\n      runtimeClassName: nvidia/' \
    -e '/^          args: \["--config"/a\
          env:\
            - {name: NVIDIA_VISIBLE_DEVICES, value: all}\
            - {name: NVIDIA_DRIVER_CAPABILITIES, value: "compute,utility"}' \
    "$(dirname -- "$0")/kvd.yaml"
