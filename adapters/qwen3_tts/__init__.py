"""Qwen3-TTS (12 Hz) on the frame engine: the CustomVoice, VoiceDesign and Base checkpoints, 0.6B and 1.7B."""
