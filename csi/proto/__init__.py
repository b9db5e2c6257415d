"""The messages of CSI and of registration with kubelet: the .proto files, which are ours, and what protoc makes of them."""
