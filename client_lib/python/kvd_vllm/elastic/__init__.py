"""A KV cache that grows and shrinks: what comes and goes, who decides it, and who maps it."""
