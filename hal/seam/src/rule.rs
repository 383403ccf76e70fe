//! [`Rule`]: one refusal of the driver, and the macro that makes rows of them.

use std::fmt;

use gaudi_spec::Asic;
use gaudi_sys::Errno;
use gaudi_uapi::NodeKind;

use crate::error_kind::ErrorKind;
use crate::operation::{AnyRequest, Operation};
use crate::state::DriverState;

/// One condition under which the driver refuses a request.
#[derive(Debug)]
pub struct Rule {
    /// The name that cases, pages and tools use: `export.unaligned-offset`.
    pub id: &'static str,
    /// Which requests it applies to.
    pub subject: Subject,
    /// The INFO op, the kind of submission or the debug op that it applies to, as the headers name
    /// it. `None` if it applies to each request of the subject.
    pub request: Option<&'static str>,
    /// What the driver answers.
    pub errno: Errno,
    /// The kind, where operation and errno do not imply it.
    pub(crate) kind: Option<ErrorKind>,
    /// Whether no request alone meets it: the kernel's memory, a race, a fault, another chip.
    pub is_rare: bool,
    /// The condition, as a clause.
    pub condition: &'static str,
    /// Where the driver decides it.
    pub source: &'static str,
    /// What to do next.
    pub advice: Option<&'static str>,
    /// The condition as functions of requests. None if only an attempt shows it.
    pub(crate) conditions: &'static [Condition],
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Rule {}

/// The condition of a rule as a function, which returns the value that breaks the rule.
#[derive(Debug, Clone, Copy)]
pub enum Condition {
    /// Of the arguments and the chip, before the driver looks at its state.
    Early(fn(AnyRequest<'_>, &Asic) -> Option<String>),
    /// Of the arguments and the chip, in the order of the rows among rules on state.
    Late(fn(AnyRequest<'_>, &Asic) -> Option<String>),
    /// Of the arguments and the driver's state.
    State(fn(AnyRequest<'_>, &dyn DriverState) -> Option<String>),
}

/// What a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// open(2) of a node.
    Open(NodeKind),
    /// Any ioctl, before it is dispatched.
    AnyIoctl,
    /// These operations.
    Operations(&'static [Operation]),
    /// Mapping an exported dma-buf for another device: an RDMA registration, for example.
    Attach,
}

impl Subject {
    /// Whether a rule of this subject applies to an operation.
    pub fn has(self, operation: Operation) -> bool {
        match self {
            Self::AnyIoctl => operation != Operation::Mmap,
            Self::Operations(operations) => operations.contains(&operation),
            Self::Open(_) | Self::Attach => false,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(NodeKind::Compute) => f.write_str("open"),
            Self::Open(NodeKind::Control) => f.write_str("open(control)"),
            Self::AnyIoctl => f.write_str("any ioctl"),
            Self::Attach => f.write_str("attach"),
            Self::Operations(operations) => {
                for (i, operation) in operations.iter().enumerate() {
                    let separator = if i == 0 { "" } else { ", " };
                    write!(f, "{separator}{}", operation.kernel_name())?;
                }
                Ok(())
            }
        }
    }
}

impl Rule {
    /// The kind of the error of `operation`; `None` for open and attach.
    pub fn kind(&self, operation: Option<Operation>) -> ErrorKind {
        self.kind.unwrap_or_else(|| match operation {
            Some(operation) => ErrorKind::of_operation(operation, self.errno),
            None => ErrorKind::of_errno(self.errno),
        })
    }

    /// The conditions of `rules` in one clause.
    pub fn conditions(rules: &[&'static Self]) -> String {
        let conditions: Vec<_> = rules.iter().map(|rule| rule.condition).collect();
        conditions.join("; or ")
    }

    /// What to do next about any of `rules`.
    pub fn advices(rules: &[&'static Self]) -> Option<String> {
        let advices: Vec<_> = rules.iter().filter_map(|rule| rule.advice).collect();
        (!advices.is_empty()).then(|| advices.join("; or "))
    }
}

/// Makes the rows of one group: a static each, and all of them.
///
/// A row ends with its condition, unless only an attempt shows it: `early` or `late`, a request and
/// the chip, or `state`, a request and the driver's state; then whether the request breaks the rule
/// and the value seen, or that value as an `Option`. Each request of the subject can have its own.
macro_rules! rows {
    (@subject open) => { Subject::Open(NodeKind::Compute) };
    (@subject control) => { Subject::Open(NodeKind::Control) };
    (@subject ioctl) => { Subject::AnyIoctl };
    (@subject attach) => { Subject::Attach };
    (@subject [$($operation:ident)+]) => { Subject::Operations(&[$(Operation::$operation),+]) };
    (@option) => { None };
    (@option $value:expr) => { Some($value) };
    (@rare) => { false };
    (@rare rare) => { true };
    (@condition early $broken:expr) => { Condition::Early($broken) };
    (@condition late $broken:expr) => { Condition::Late($broken) };
    (@condition state $broken:expr) => { Condition::State($broken) };
    (@seen $broken:expr => $seen:expr) => { ($broken).then(|| $seen.to_string()) };
    (@seen $seen:expr) => { $seen };
    ($(
        $(#[$meta:meta])*
        mod $group:ident {$(
            $name:ident $id:literal $subject:tt $errno:ident $(for $request:literal)? $(as $kind:ident)?
                $(; $rare:ident;)? $condition:literal, $source:literal $(, $advice:literal)?
                $($by:ident |$request_of:ident($args:pat), $given:pat_param| $broken:expr $(=> $seen:expr)?),*;
        )*}
    )*) => {$(
        $(#[$meta])*
        pub mod $group {
            #[allow(unused_imports, reason = "not every group has each kind of subject")]
            use super::*;

            $(
                #[doc = $condition]
                pub static $name: Rule = Rule {
                    id: $id,
                    subject: rows!(@subject $subject),
                    request: rows!(@option $($request)?),
                    errno: Errno::$errno,
                    kind: rows!(@option $(ErrorKind::$kind)?),
                    is_rare: rows!(@rare $($rare)?),
                    condition: $condition,
                    source: $source,
                    advice: rows!(@option $($advice)?),
                    conditions: &[$(rows!(@condition $by |request, $given| match request {
                        AnyRequest::$request_of($args) => rows!(@seen $broken $(=> $seen)?),
                        _ => None,
                    })),*],
                };
            )*

            pub(crate) static ALL: &[&Rule] = &[$(&$name),*];
        }
    )*};
}
pub(crate) use rows;
