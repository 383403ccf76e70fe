//! libscal.so: a shim with the calls that UCX makes.
