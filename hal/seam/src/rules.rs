//! The rules of the driver: each refusal is one row with an id.
//!
//! - *The rows are complete for users of Gaudi2*: every errno that the driver of Linux 7.3.4 can
//!   answer to an operation. Causes of the driver's start-up are left out.
//! - *Everything else refers to rows*: the mock refuses by rule, the validate layer and the kernel
//!   backend attach rules to errors, the conformance cases show which rules are covered.
//! - *A source is `file.c:function`* below `drivers/accel/habanalabs`, unless it starts with
//!   `drivers/` or `mm/`.

mod memory;
mod node;
mod submission;

use std::fmt;

use gaudi_sys::Errno;
use gaudi_uapi::NodeKind;

use crate::error::ErrorKind;
use crate::operation::Operation;

pub use memory::{block, buffer, export, map, mmap, timestamps};
pub use node::{attach, debug, events, info, ioctl, open};
pub use submission::{engines, signal, submit, wait};

/// The kernel that the rows were read from.
pub const KERNEL: &str = "Linux 7.3.4";

/// One condition under which the driver refuses a request.
#[derive(Debug, PartialEq, Eq)]
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
    kind: Option<ErrorKind>,
    /// Whether no request alone meets it: the kernel's memory, a race, a fault, another chip.
    pub is_rare: bool,
    /// The condition, as a clause.
    pub condition: &'static str,
    /// Where the driver decides it.
    pub source: &'static str,
    /// What to do next.
    pub advice: Option<&'static str>,
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

    /// Every rule, in the order of the headers' operations.
    pub fn all() -> impl Iterator<Item = &'static Self> + Clone {
        GROUPS.iter().copied().flatten().copied()
    }

    /// The rule with this id.
    pub fn of_id(id: &str) -> Option<&'static Self> {
        Self::all().find(|rule| rule.id == id)
    }

    /// The rules that give `errno` to a request. Rules of any ioctl come last.
    ///
    /// `request` names the INFO op, the kind of submission or the debug op. Rare rules are left out
    /// if another one fits.
    pub fn fitting(operation: Operation, request: Option<&str>, errno: Errno) -> Vec<&'static Self> {
        let fits = |rule: &&Self| {
            rule.errno == errno
                && rule.subject.has(operation)
                && (rule.request.is_none() || rule.request == request)
        };
        Self::most_likely(Self::all().filter(fits).collect())
    }

    /// The rules that give `errno` to an open of a node.
    pub fn of_open(kind: NodeKind, errno: Errno) -> Vec<&'static Self> {
        let fits = |rule: &&Self| rule.errno == errno && rule.subject == Subject::Open(kind);
        Self::most_likely(Self::all().filter(fits).collect())
    }

    fn most_likely(mut rules: Vec<&'static Self>) -> Vec<&'static Self> {
        if rules.iter().any(|rule| !rule.is_rare) {
            rules.retain(|rule| !rule.is_rare);
        }
        rules.sort_by_key(|rule| rule.subject == Subject::AnyIoctl);
        rules
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
macro_rules! rules {
    (@subject open) => { Subject::Open(NodeKind::Compute) };
    (@subject control) => { Subject::Open(NodeKind::Control) };
    (@subject ioctl) => { Subject::AnyIoctl };
    (@subject attach) => { Subject::Attach };
    (@subject [$($operation:ident)+]) => { Subject::Operations(&[$(Operation::$operation),+]) };
    (@option) => { None };
    (@option $value:expr) => { Some($value) };
    (@rare) => { false };
    (@rare rare) => { true };
    ($(
        $(#[$meta:meta])*
        mod $group:ident {$(
            $name:ident $id:literal $subject:tt $errno:ident $(for $request:literal)? $(as $kind:ident)?
                $(; $rare:ident;)? $condition:literal, $source:literal $(, $advice:literal)?;
        )*}
    )*) => {$(
        $(#[$meta])*
        pub mod $group {
            #[allow(unused_imports, reason = "not every group has each kind of subject")]
            use super::{Errno, ErrorKind, NodeKind, Operation, Rule, Subject, rules};

            $(
                #[doc = $condition]
                pub static $name: Rule = Rule {
                    id: $id,
                    subject: rules!(@subject $subject),
                    request: rules!(@option $($request)?),
                    errno: Errno::$errno,
                    kind: rules!(@option $(ErrorKind::$kind)?),
                    is_rare: rules!(@rare $($rare)?),
                    condition: $condition,
                    source: $source,
                    advice: rules!(@option $($advice)?),
                };
            )*

            pub(in crate::rules) static ALL: &[&Rule] = &[$(&$name),*];
        }
    )*};
}
use rules;

static GROUPS: &[&[&Rule]] = &[
    open::ALL,
    ioctl::ALL,
    info::ALL,
    events::ALL,
    buffer::ALL,
    submit::ALL,
    signal::ALL,
    engines::ALL,
    wait::ALL,
    map::ALL,
    block::ALL,
    export::ALL,
    timestamps::ALL,
    debug::ALL,
    mmap::ALL,
    attach::ALL,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_name_their_group() {
        let ids: BTreeSet<_> = Rule::all().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), Rule::all().count(), "each id names one rule");
        for rule in Rule::all() {
            assert_eq!(Rule::of_id(rule.id), Some(rule));
            assert!(rule.id.contains('.'), "{} has a group", rule.id);
        }
    }

    #[test]
    fn conditions_are_clauses_and_sources_name_functions() {
        for rule in Rule::all() {
            assert!(
                !rule.condition.is_empty() && !rule.condition.ends_with('.') && rule.condition.len() <= 120,
                "{} has a short clause",
                rule.id
            );
            let (file, function) = rule.source.split_once(".c:").expect(rule.id);
            assert!(
                file.contains('/') && !function.is_empty(),
                "{} cites a function",
                rule.id
            );
            assert!(
                !function.starts_with(|c: char| c.is_ascii_digit()),
                "{} cites no line",
                rule.id
            );
        }
    }

    #[test]
    fn fitting_rules_follow_operation_request_and_errno() {
        let conditions = |operation, errno| Rule::conditions(&Rule::fitting(operation, None, errno));
        let of_open = |errno| Rule::conditions(&Rule::of_open(NodeKind::Compute, errno));
        assert!(of_open(Errno::EBUSY).contains("another process"));
        assert!(of_open(Errno::EINVAL).contains("FOP_UNSIGNED_OFFSET"));
        assert!(conditions(Operation::MemUnmap, Errno::EINVAL).contains("exported"));
        assert!(conditions(Operation::MemUnmap, Errno::EBUSY).contains("not operational"));
        assert_eq!(of_open(Errno::ENOTTY), "", "an ioctl's rules are not an open's");
        let sync_manager = Rule::fitting(Operation::Info, Some("HL_INFO_SYNC_MANAGER"), Errno::EINVAL);
        assert!(sync_manager.contains(&&info::DCORE));
        assert!(!Rule::fitting(Operation::Info, None, Errno::EINVAL).contains(&&info::DCORE));
    }

    #[test]
    fn rare_rules_are_listed_alone_only() {
        assert_eq!(
            Rule::fitting(Operation::MemAlloc, None, Errno::EFAULT),
            [&ioctl::POINTER]
        );
        assert_eq!(
            Rule::fitting(Operation::Submit, None, Errno::ETIMEDOUT),
            [&submit::CONTEXT_SWITCH]
        );
    }
}
