"""The frame engine: runs models that make one short frame of output a step, many requests at once.

`model` is the contract of what runs in a worker process, `scheduler` decides what each step does, `worker` is
that process, `messages` what it says, `client` its face in the gateway. See docs/frame-engine.md.
"""
