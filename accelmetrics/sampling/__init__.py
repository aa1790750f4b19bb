"""When measurements are taken: the sampler, its deadline, its lanes. Knows ``backends`` through their contract and the registry."""
