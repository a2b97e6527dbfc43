"""Windows of a session for the vision encoder: frames, or canvases of patches that the codec chose."""
