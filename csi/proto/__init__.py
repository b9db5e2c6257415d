"""The CSI messages: csi.proto, and what protoc makes of it. Nothing written by hand but csi.proto."""
