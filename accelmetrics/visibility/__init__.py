"""Which devices are whose: visible devices, who is on which, what is wrong."""
