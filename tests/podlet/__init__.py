"""podlet against the truth of a kubelet, with hand-written busybox pods."""
