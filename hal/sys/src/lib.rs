//! Small safe wrappers over nix: fds, memfd, dma-buf ioctls, SCM_RIGHTS and raw mappings.
