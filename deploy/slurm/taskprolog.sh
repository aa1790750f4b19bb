#!/bin/sh
# slurm.conf: TaskProlog=/etc/slurm/taskprolog.sh
# Slurm gives a task the variables that this prints as `export`. With the daemon's readings (`serve --share`) the tasks of a node share
# them, and none of them asks the driver.
share=${ACCELMETRICS_SHARE_DIRECTORY:-/run/accelmetrics}

for ring in "$share"/machine-*.ring; do
  if [ -r "$ring" ]; then
    echo "export ACCELMETRICS_SHARE_DIRECTORY=$share"
    break
  fi
done
