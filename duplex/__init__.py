"""Duplex: a realtime full-duplex streaming gateway for speech, vision and omni models."""

__version__ = "0.1.0"
