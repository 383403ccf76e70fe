//! C unions as words: a buffer of the union's exact size that variants are copied into and read
//! from.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `T` copied to the front of `N` words; the rest is zero. Does not compile into a call when `T`
/// does not fit.
pub(crate) fn from_view<const N: usize, T: IntoBytes + Immutable>(view: &T) -> [u64; N] {
    const { assert!(size_of::<T>() <= N * 8, "the view is larger than its union") };
    let mut words = [0u64; N];
    words.as_mut_bytes()[..size_of::<T>()].copy_from_slice(view.as_bytes());
    words
}

/// The front of `N` words read as `T`.
pub(crate) fn to_view<const N: usize, T: FromBytes + IntoBytes>(words: &[u64; N]) -> T {
    const { assert!(size_of::<T>() <= N * 8, "the view is larger than its union") };
    let mut view = T::new_zeroed();
    view.as_mut_bytes()
        .copy_from_slice(&words.as_bytes()[..size_of::<T>()]);
    view
}

/// Defines the argument buffer of an ioctl whose argument in C is `union { in; out; }`.
macro_rules! args_union {
    (pub struct $args:ident[$words:literal] = $c_name:literal { in: $request:ident, out: $answer:ident }) => {
        #[doc = c_doc!([$c_name] [] [])]
        ///
        /// It is built from a request, passed to the ioctl as bytes, and then holds the answer at
        /// its front. Bytes behind the answer are whatever the driver left there.
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::Immutable,
            zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $args(pub [u64; $words]);

        impl $args {
            /// The union in C, without its members.
            pub const LAYOUT: $crate::CStruct = $crate::CStruct {
                c_name: $c_name,
                header: "habanalabs_accel.h",
                since: $crate::Since::V6_1,
                view_at: None,
                size: size_of::<Self>(),
                size_6_1: None,
                fields: &[],
            };

            /// The buffer's bytes read as the answer (C: `.out`).
            #[inline]
            pub fn answer(&self) -> $answer {
                $crate::words::to_view(&self.0)
            }

            /// The buffer's bytes read as the request (C: `.in`).
            #[inline]
            pub fn request(&self) -> $request {
                $crate::words::to_view(&self.0)
            }

            /// Replaces the buffer's bytes by an answer. Bytes behind it become zero.
            #[inline]
            pub fn set_answer(&mut self, answer: $answer) {
                self.0 = $crate::words::from_view(&answer);
            }
        }

        impl From<$request> for $args {
            #[inline]
            fn from(request: $request) -> Self {
                Self($crate::words::from_view(&request))
            }
        }
    };
}
