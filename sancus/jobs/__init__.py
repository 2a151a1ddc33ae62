"""Complete job scripts: one run on several hosts, by Slurm, torchrun, mpiexec or Kubernetes."""
