"""When measurements are taken: the sampler, its deadline, its workers. Knows ``backends`` through their contract and the registry."""
