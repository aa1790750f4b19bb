#!/bin/sh
# slurm.conf: TaskProlog=/etc/slurm/taskprolog.sh
# Slurm gives a task the variables that this prints as `export`. With the daemon's socket the tasks of a node share its readings,
# and none of them asks the driver.
socket=${ACCELMETRICS_SOCKET:-/run/accelmetrics/collector.sock}

if [ -S "$socket" ]; then
  echo "export ACCELMETRICS_SOCKET=$socket"
fi
