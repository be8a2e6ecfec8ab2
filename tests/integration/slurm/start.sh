#!/bin/sh
# Start a SLURM of one node on this machine, for the tests; needs root and the Debian packages slurm-wlm and munge.
set -e
place=/run/rattle-slurm
node=$(hostname -s)
mkdir -p $place/state $place/spool /etc/slurm /run/munge
[ -f /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 2>/dev/null; }
chown -R munge:munge /etc/munge /run/munge /var/lib/munge /var/log/munge
chmod 400 /etc/munge/munge.key
munge -n >/dev/null 2>&1 || su -s /bin/sh munge -c munged
if [ -f /etc/slurm/slurm.conf ] && ! grep -q "ClusterName=rattle" /etc/slurm/slurm.conf; then
    echo "this machine has a SLURM of its own" >&2
    exit 1
fi
cat > /etc/slurm/slurm.conf <<CONF
ClusterName=rattle
SlurmctldHost=$node(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=30
MinJobAge=3600
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
plugin=disabled # known since 23.02; before, the one that does nothing unless asked
case "$(slurmd -V)" in *\ 2[0-2].*) plugin=cgroup/v1 ;; esac
echo "CgroupPlugin=$plugin" > /etc/slurm/cgroup.conf
scontrol ping 2>/dev/null | grep -q "is UP" || slurmctld
[ -f $place/slurmd.pid ] && kill -0 "$(cat $place/slurmd.pid)" 2>/dev/null || slurmd -N "$node"
for _ in $(seq 60); do
    sinfo --noheader --format %T 2>/dev/null | grep -qE "^(idle|mixed|allocated)$" && exit 0
    sleep 1
done
echo "the node does not come up: $(tail -n 3 $place/slurmd.log $place/slurmctld.log 2>/dev/null | tr '\n' ' ')" >&2
exit 1
