"""Audio and video coding, decoding, resampling, codec side information."""

from duplex.codecs.encoders import CODECS, AudioEncoder, open_encoder
from duplex.codecs.pcm import PcmBytes, to_float32, to_int16
from duplex.codecs.resample import SAMPLE_RATES, Resampler, resample_chunks

__all__ = [
    "CODECS",
    "SAMPLE_RATES",
    "AudioEncoder",
    "PcmBytes",
    "Resampler",
    "open_encoder",
    "resample_chunks",
    "to_float32",
    "to_int16",
]
