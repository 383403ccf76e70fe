//! One conformance suite for every backend.
