"""From finished pieces to a finished folder, even if a process is killed or a step runs twice.

`leases` lets one job at a time into a folder. `staging` keeps its unfinished pieces, which the next attempt reuses;
`reports` adds up what workers say about them, and `parts` builds manifests of many shards on many workers. `publish`
puts pieces into place and writes the manifest last: begin there, with its table of states. `finished` decides what
happens if a result is there already, and `failures` has the errors that an engine must not retry.
"""
