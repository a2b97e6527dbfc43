"""The speech endpoints: exact text in, audio out, over HTTP and WebSocket."""
