"""One run on several processes: who they are, how they share the network, how they save it."""
