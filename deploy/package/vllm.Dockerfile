# vLLM's image with kvd's client in it. Made in the folder of a release:
#
#   docker build -f vllm.Dockerfile -t vllm-kvd:0.32.0 .
#   docker run -v /run/kvd:/run/kvd ... vllm-kvd:0.32.0 --model MODEL
#
# Nothing here has built it: no container engine is where kvd is tested.
ARG VLLM=v0.32.0
FROM vllm/vllm-openai:${VLLM}
COPY kvd_client-*.whl kvd_vllm-*.whl /tmp/kvd/
RUN python3 -m pip install --no-index --find-links /tmp/kvd kvd-vllm && rm -r /tmp/kvd
ENV KVD_VLLM=1
