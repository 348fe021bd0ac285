"""`ups estimate`: what a run costs in parameters, memory, disk and time, before it is begun."""
