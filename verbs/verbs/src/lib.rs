//! Safe RDMA objects over a provider: PD, MR, CQ and RC queue pairs.
