//! libSynapse.so: a shim with the calls that RDMA programs make.
