//! libSynapseMme.so: a shim without a function. UCX's build links `-lSynapseMme` and calls nothing
//! of it.

#![allow(non_snake_case, reason = "the crate has the library's name")]
