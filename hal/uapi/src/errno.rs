//! Errnos by name.

macro_rules! errnos {
    ($($(#[$meta:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$meta])* pub const $name: i32 = $value;)*

        /// The errnos of this module by name (`asm-generic/errno.h`; the same on x86-64 and arm64).
        pub const NAMES: &[(&str, i32)] = &[$((stringify!($name), $name)),*];
    };
}

errnos! {
    /// Operation not permitted.
    EPERM = 1;
    /// No such file or directory.
    ENOENT = 2;
    /// Interrupted system call.
    EINTR = 4;
    /// Input/output error.
    EIO = 5;
    /// No such device or address.
    ENXIO = 6;
    /// Exec format error.
    ENOEXEC = 8;
    /// Bad file descriptor.
    EBADF = 9;
    /// Try again.
    EAGAIN = 11;
    /// Out of memory.
    ENOMEM = 12;
    /// Permission denied.
    EACCES = 13;
    /// Bad address.
    EFAULT = 14;
    /// Device or resource busy.
    EBUSY = 16;
    /// No such device.
    ENODEV = 19;
    /// Invalid argument.
    EINVAL = 22;
    /// Too many open files in the system.
    ENFILE = 23;
    /// Too many open files.
    EMFILE = 24;
    /// Inappropriate ioctl for device.
    ENOTTY = 25;
    /// Operation not supported.
    EOPNOTSUPP = 95;
    /// Connection timed out.
    ETIMEDOUT = 110;
}
