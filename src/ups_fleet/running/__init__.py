"""A run under a supervisor: started, begun again, gone on with for ever, shown in one line."""
