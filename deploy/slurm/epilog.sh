#!/bin/sh
# slurm.conf: Epilog=/etc/slurm/epilog.d/*
# Removes what the Prolog wrote, and appends what the job came to: GPU hours held, used and wasted, energy.
accelmetrics=${ACCELMETRICS:-/opt/accelmetrics/bin/accelmetrics}
log=${ACCELMETRICS_JOB_LOG:-/var/log/accelmetrics-jobs.jsonl}

umask 077
timeout 10 "$accelmetrics" job end --json 2>&1 >>"$log" | logger --tag accelmetrics-epilog
exit 0
