"""Vision encoder and cognition gate in a process of their own, shared by all sessions."""
