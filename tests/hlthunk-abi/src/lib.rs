//! The C headers, symbols and layouts of libhl-thunk.so against a table of facts.
