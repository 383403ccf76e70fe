//! libSynapseMme.so: an empty shim. UCX's build links `-lSynapseMme` and calls no function of it.

#![allow(non_snake_case, reason = "the crate has the library's name")]
