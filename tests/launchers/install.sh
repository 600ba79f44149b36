#!/bin/sh
# Real launchers for `make test-launchers`, from Debian's packages: Open MPI, Slurm, munge, network namespaces. Needs root.
set -eu
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "launchers: not root on a system with apt-get; tests run with what is installed" >&2
    exit 0
fi
needed=""
for pair in mpirun:openmpi-bin mpicc:libopenmpi-dev srun:slurm-client slurmctld:slurmctld slurmd:slurmd munged:munge \
    ip:iproute2 gcc:gcc; do
    command -v "${pair%%:*}" >/dev/null || needed="$needed ${pair##*:}"
done
[ -z "$needed" ] && exit 0
case "$needed" in *slurm*) needed="$needed slurm-wlm-basic-plugins" ;; esac
# Packages must not start services of their own: the tests start what they need, on ports of their own.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null || { echo "launchers: no package lists; tests run with what is installed" >&2; exit 0; }
# shellcheck disable=SC2086
apt-get install -y -q --no-install-recommends $needed >/dev/null ||
    echo "launchers: not all of$needed could be installed" >&2
