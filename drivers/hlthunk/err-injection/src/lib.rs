//! libhl-thunk-err_injection.so: errors on purpose, on a mock.
