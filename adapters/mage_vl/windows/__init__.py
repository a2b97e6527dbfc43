"""A session's windows as the vision encoder takes them: frames, or canvases of patches that the codec chose."""
