"""When measurements are taken: samplers, deadlines, workers. Backends are used only through their contract and registry."""
