"""How the volumes of pods are: a pod and its keeper's log in, a judgement and its text out. Pure; the calls are the command's."""
