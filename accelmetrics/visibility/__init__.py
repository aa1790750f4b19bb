"""Which devices a program sees, which processes use which, and what works: visible devices, allocation, doctor."""
