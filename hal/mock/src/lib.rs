//! The habanalabs driver as a model over the virtual chip.
