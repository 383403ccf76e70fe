//! A software NIC behind the provider trait of gaudi-verbs.
