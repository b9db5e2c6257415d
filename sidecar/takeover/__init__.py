"""What a daemon leaves to its successor: the state that outlives a process, and how a successor takes it up.

Belongs here: nodes, handles and operations as numbers and names, free of any store and of pyfuse3. Does not: what the
files are (`sidecar.directory`), and which process serves when.

A successor, once its predecessor is certainly dead:

1. builds its operations with a `Succession` of `resume=True`, which loads the state;
2. `drained = drain(device, newcomers=operations.memory.newcomers)`: what the kernel had asked and never got an answer to;
3. `operations.resume(drained)`, then `newcomers.clear()` and `requeue(device, drained)`;
4. plays INIT back (`drained.init` if there is one) and serves, on a runtime with `runtime.errands = operations.errands`.

Files without a name are kept in a `Park`: a process that is to outlive the daemon holds its two descriptors.
"""
