"""Mage-VL: video in, proactive commentary and answers out."""
