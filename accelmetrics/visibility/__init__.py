"""Users of devices, and faults: visible devices, processes, allocation, jobs and pods, doctor, verify, bundles."""
