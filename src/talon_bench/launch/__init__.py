"""Jobs of a sweep as processes of their own: several at once on this machine, or on a cluster (docs/clusters.md)."""
