//! libhl-thunk.so: the vendor's C library for programs that are written for it.
