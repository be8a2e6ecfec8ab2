#!/bin/sh
# Stop the SLURM that start.sh started, and forget it.
place=/run/rattle-slurm
for daemon in slurmd slurmctld; do
    [ -f $place/$daemon.pid ] && kill "$(cat $place/$daemon.pid)"
done
grep -q "ClusterName=rattle" /etc/slurm/slurm.conf && rm -f /etc/slurm/slurm.conf /etc/slurm/cgroup.conf
rm -rf $place
