#!/bin/sh
# Stop the SLURM that start.sh started, and forget it.
place=/run/rattle-slurm
for daemon in slurmd slurmctld; do
    [ -f $place/$daemon.pid ] || continue
    pid=$(cat $place/$daemon.pid)
    kill "$pid"
    for _ in $(seq 100); do # it writes its state before it ends
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
done
grep -q "ClusterName=rattle" /etc/slurm/slurm.conf && rm -f /etc/slurm/slurm.conf /etc/slurm/cgroup.conf
rm -rf $place
