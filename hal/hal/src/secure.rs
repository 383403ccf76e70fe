//! Whether this process runs with more rights than its caller has.

#![expect(unsafe_code, reason = "getauxval(3) is reachable through libc only")]

/// `AT_SECURE`: set-user-id, set-group-id or file capabilities. The environment of such a process
/// is its caller's, not its owner's.
pub fn is_secure() -> bool {
    // SAFETY: getauxval takes a number and reads what the kernel gave this process at its start.
    unsafe { nix::libc::getauxval(nix::libc::AT_SECURE) != 0 }
}
