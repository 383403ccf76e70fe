//! libSynapseMme.so: a shim that programs link and do not call.
