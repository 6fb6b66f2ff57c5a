#!/bin/bash
# Trains on the machines of a hostfile with DeepSpeed's launcher. Start it on the first of them:
#
#     ./deepspeed.sh              starts the others by ssh
#     ./deepspeed.sh 0            without ssh: start it on every machine, with its place in the hostfile (0, 1, ...)
#
# Copy this file and the hostfile to one folder on each machine, and change the lines below each "change:".
#
# By ssh, the first machine needs pdsh (apt install pdsh) and must be able to log in to every machine of the hostfile,
# itself included, without a password and without a question: `ssh -o BatchMode=yes machine-2 hostname` prints its name.
# The environment, this folder and all paths must be the same on all machines.
#
# To stop and save: kill -TERM or -USR1 one rank (pgrep -f 'trainer --local_rank'), on any machine; all save and end
#                   with 75. Do not use Ctrl-C with ssh: DeepSpeed's launcher then kills ranks that
#                   need more than 30 seconds to save.
# Exit codes:       those of the ranks, but 0 too if a launcher is killed by a signal (the memory killer's, for one). A
#                   run that has reached its end says so: "step 1000 of 1000 is saved".
# To resume:        start it again. If a machine is lost, delete its line from the hostfile first.

set -euo pipefail

# change: the first machine's address on the network that connects the machines, and that network's interface
# (`ip -brief address`). Ranks talk without encryption or passwords, so it must be a private network.
first=10.0.0.1
interface=eth0

# change: the environment with clozeline[trainer].
trap 'echo "$0: change the lines below each \"change:\" in this file first." >&2; exit 2' EXIT
source /shared/clozeline/.venv/bin/activate
trap - EXIT

# change: the recipe, the pairs, and a folder for the run that all machines see (NFS will do).
recipe=(--config bert_base --set data.pairs=/shared/pairs --set run.output=/shared/run)

# Gloo would otherwise listen at the address that the machine's name resolves to: on Debian and Ubuntu 127.0.1.1, which
# other machines cannot reach. NCCL would choose an interface itself, perhaps Docker's. DeepSpeed passes variables whose
# names begin with NCCL on to the other machines; all others it takes from the file .deepspeed_env in this folder.
export GLOO_SOCKET_IFNAME=$interface NCCL_SOCKET_IFNAME=$interface
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}  # says why a connection failed; INFO shows which network NCCL uses
cd "$(dirname "$0")"
echo "GLOO_SOCKET_IFNAME=$interface" >.deepspeed_env

# SIGUSR1 would end DeepSpeed's launchers, and not the ranks. Ranks replace this setting, which they inherit.
trap '' USR1

without_ssh=()
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    without_ssh=(--no_ssh --node_rank "$1")
    shift
fi
for program in pdsh ssh; do
    if [ ${#without_ssh[@]} -eq 0 ] && ! command -v "$program" >/dev/null; then
        echo "deepspeed.sh: there is no $program on this machine, which is needed to start the others by ssh. Install" \
            "it, or start this file on every machine with its place in the hostfile: ./deepspeed.sh 0" >&2
        exit 2
    fi
done
exec deepspeed --hostfile hostfile --master_addr "$first" --master_port "${PORT:-29500}" "${without_ssh[@]}" \
    --module trainer "${recipe[@]}" "$@"
