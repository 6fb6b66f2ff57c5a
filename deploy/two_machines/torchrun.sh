#!/bin/bash
# Trains on two machines (or more) that you can log in to, without a scheduler. Start it on each of them:
#
#     first machine:  ./torchrun.sh 0        second machine:  ./torchrun.sh 1
#
# Copy this file to both machines, and change the lines below each "change:" in the same way on both.
#
# To stop and save: Ctrl-C, or kill -TERM, on one of them; both save and end with exit code 75.
# To resume:        start it on both again. If one machine is lost, resume on the other alone:
#                       MACHINES=1 ./torchrun.sh 0
#                   with as many ranks as both had together, for the very same numbers: MACHINES=1 RANKS=16 (on CPUs;
#                   a GPU takes one rank), or with its own, for the same rows and losses that differ by rounding.
# To look inside:   RUN/report.html, in a browser

set -euo pipefail
if [ $# -eq 0 ]; then
    echo "Say which machine this is: ./torchrun.sh 0 on the first, ./torchrun.sh 1 on the second" >&2
    exit 2
fi
machine=$1
shift

# change: the first machine's address on the network that connects the machines, that network's interface
# (`ip -brief address`), and the GPUs per machine (or ranks, on CPUs). Ranks talk without encryption or passwords, so it
# must be a private network.
first=10.0.0.1
interface=eth0
ranks=${RANKS:-8}

# change: the environment with clozeline[trainer].
trap 'echo "$0: change the lines below each \"change:\" in this file first." >&2; exit 2' EXIT
source /shared/clozeline/.venv/bin/activate
trap - EXIT

# change: the recipe, the pairs, and a folder for the run that both machines see (NFS will do), or a URL of a bucket.
recipe=(--config bert_base --set data.pairs=/shared/pairs --set run.output=/shared/run)

machines=${MACHINES:-2}

# A machine on its own talks to itself: the first one may be the one that was lost, and the network with it.
if [ "$machines" -eq 1 ]; then
    first=127.0.0.1
    interface=lo
fi

# Gloo would otherwise listen at the address that the machine's name resolves to: on Debian and Ubuntu 127.0.1.1, which
# other machines cannot reach. NCCL would choose an interface itself, perhaps Docker's.
export GLOO_SOCKET_IFNAME=$interface NCCL_SOCKET_IFNAME=$interface
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}  # says why a connection failed; INFO shows which network NCCL uses

# Port 29500 of the first machine, and ports that the system chooses, must be open between the machines.
exec python -m trainer.torchrun --nnodes "$machines" --node_rank "$machine" --nproc_per_node "$ranks" \
    --master_addr "$first" --master_port "${PORT:-29500}" -m trainer "${recipe[@]}" "$@"
