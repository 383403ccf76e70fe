//! [`Invariant`]: what must hold after every run.

use std::fmt;
use std::str::FromStr;

macro_rules! invariants {
    ($($name:ident $text:literal $holds:literal,)*) => {
        /// A property that is checked in every run. It is switched off by name only.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Invariant {
            $(#[doc = $holds] $name,)*
        }

        impl Invariant {
            /// Every invariant.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name: stable, in lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// What holds, in one sentence.
            pub const fn holds(self) -> &'static str {
                match self {
                    $(Self::$name => $holds,)*
                }
            }
        }
    };
}

invariants! {
    Leaks "leaks"
        "Every allocation, mapping and command buffer is released, unless its release was refused.",
    HostMemory "host-memory" "Every host mapping of the run is unmapped.",
    Descriptors "descriptors" "Every descriptor of device memory is closed.",
    ForeignBytes "foreign-bytes" "No byte changes that no operation wrote, and every copy arrives.",
    EndsOnce "ends-once" "Each submission ends exactly once, and only after the driver reported its end.",
    TruthfulErrors "truthful-errors" "An error is one that the driver or a fault caused; no success hides one.",
    Reset "reset" "After a reset the device can be opened again and works.",
    TimeBudget "time-budget" "The run ends within its budget of virtual time, of calls and of real time.",
    Misuse "misuse" "No request is invalid.",
    Panics "panics" "The code does not panic.",
    PeersEnd "peers-end" "After the end of a node every other node ends in time, with an error of its own.",
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Invariant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|invariant| invariant.name() == text);
        known.copied().ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|invariant| invariant.name()).collect();
            format!("no invariant {text:?}; known: {}", names.join(", "))
        })
    }
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// What was expected and what was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}
