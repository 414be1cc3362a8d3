"""Layers streamed: vLLM's blocks are names of which HBM and DRAM together hold as many as there are, and
what HBM lacks of a layer is fetched before that layer's attention."""
