"""Audio and video coding, decoding, resampling, codec side information."""

from duplex.codecs.decoders import (
    DECODE_FORMATS,
    decode_audio,
    format_of_media_type,
    open_decoder,
    sniff_audio,
)
from duplex.codecs.decoding import AudioDecoder, DecodeLimits
from duplex.codecs.encoders import CODECS, AudioEncoder, open_encoder
from duplex.codecs.pcm import PcmBytes, to_float32, to_int16
from duplex.codecs.resample import SAMPLE_RATES, Resampler, resample_chunks

__all__ = [
    "CODECS",
    "DECODE_FORMATS",
    "SAMPLE_RATES",
    "AudioDecoder",
    "AudioEncoder",
    "DecodeLimits",
    "PcmBytes",
    "Resampler",
    "decode_audio",
    "format_of_media_type",
    "open_decoder",
    "open_encoder",
    "resample_chunks",
    "sniff_audio",
    "to_float32",
    "to_int16",
]
