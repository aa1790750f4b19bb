#!/bin/sh
# slurm.conf: Prolog=/etc/slurm/prolog.d/*
# Writes down which devices the job was given. Always succeeds, and within seconds: a Prolog that fails drains its node.
accelmetrics=${ACCELMETRICS:-/opt/accelmetrics/bin/accelmetrics}

timeout 10 "$accelmetrics" job begin 2>&1 | logger --tag accelmetrics-prolog
exit 0
