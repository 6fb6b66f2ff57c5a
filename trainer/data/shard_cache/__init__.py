"""Local copies of remote shards, shared by all processes of a machine."""
