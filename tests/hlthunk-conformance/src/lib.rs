//! What programs written for hl-thunk rely on, as cases against the C ABI.
