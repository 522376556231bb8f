//! The laboratory: builds nodes, pods, a kube-proxy stand-in and real servers in network namespaces, and always cleans up.
