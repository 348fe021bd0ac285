"""Starting ranks and watching over them from outside: the supervisor, launchers, time limits, evidence of a hang."""
