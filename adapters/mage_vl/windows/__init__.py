"""Windows of a session made into what the vision encoder takes: frames, or canvases of the codec's patches."""
