//! The rules of the driver: each refusal is one row with an id.
//!
//! - *The rows are complete for users of Gaudi2*: every errno that the driver of Linux 7.3.4 can
//!   answer to an operation. Causes of the driver's start-up are left out.
//! - *Everything else refers to rows*: the mock refuses by rule, the validate layer and the kernel
//!   backend attach rules to errors, the conformance cases show which rules are covered.
//! - *The mock and the validate layer evaluate the conditions of the rows*, in row order.
//!   The mock enforces a row without a condition where it detects the cause.
//! - *A source is `file.c:function`* below `drivers/accel/habanalabs`, unless it starts with
//!   `drivers/` or `mm/`.

mod memory;
mod node;
mod submission;

use std::sync::LazyLock;

use gaudi_spec::Asic;
use gaudi_sys::Errno;
use gaudi_uapi::NodeKind;

use crate::operation::{AnyRequest, Operation};
pub use crate::rule::{Condition, Rule, Subject};
use crate::state::DriverState;

pub use memory::{block, buffer, export, map, mmap, timestamps};
pub use node::{attach, debug, events, info, ioctl, open};
pub use submission::{engines, signal, submit, wait};

/// The kernel that the rows were read from.
pub const KERNEL: &str = "Linux 7.3.4";

impl Rule {
    /// Every rule, in the order of the headers' operations.
    pub fn all() -> impl Iterator<Item = &'static Self> + Clone {
        GROUPS.iter().copied().flatten().copied()
    }

    /// The rule with this id.
    pub fn of_id(id: &str) -> Option<&'static Self> {
        Self::all().find(|rule| rule.id == id)
    }

    /// Returns the first rule that a request to a chip breaks, and the offending value. Without
    /// `state`, checks only the rules that the driver checks before it reads its state; with
    /// `state`, checks all other rules.
    pub fn broken_by(
        request: AnyRequest<'_>,
        asic: &Asic,
        state: Option<&dyn DriverState>,
    ) -> Option<(&'static Self, String)> {
        let (early, late) = match request {
            AnyRequest::Submit(request) if request.types() == 0 => &*OF_WORK,
            _ => &CHECKS[request.operation() as usize],
        };
        let checks = if state.is_some() { late } else { early };
        checks
            .iter()
            .find_map(|(rule, condition)| match (condition, state) {
                (Condition::Early(broken), None) | (Condition::Late(broken), Some(_)) => {
                    Some((*rule, broken(request, asic)?))
                }
                (Condition::State(broken), Some(state)) => Some((*rule, broken(request, state)?)),
                _ => None,
            })
    }

    /// Returns the conditions of an operation, in the order in which the driver checks them.
    pub fn checks(operation: Operation) -> impl Iterator<Item = &'static (&'static Self, Condition)> {
        let (early, late) = &CHECKS[operation as usize];
        early.iter().chain(late)
    }

    /// The rules that give `errno` to a request. Rules of any ioctl come last.
    ///
    /// `request` names the INFO op, the kind of submission or the debug op. Rare rules are left out
    /// if another one fits.
    pub fn fitting(operation: Operation, request: Option<&str>, errno: Errno) -> Vec<&'static Self> {
        let fits = |rule: &&Self| rule.errno == errno && (rule.request.is_none() || rule.request == request);
        let rules = RULES[operation as usize].iter().copied();
        Self::most_likely(rules.filter(fits).collect())
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
}

/// The rules by operation.
static RULES: LazyLock<Vec<Vec<&'static Rule>>> = LazyLock::new(|| {
    let of = |&operation| Rule::all().filter(|rule| rule.subject.has(operation)).collect();
    Operation::ALL.iter().map(of).collect()
});

type Checks = Vec<(&'static Rule, Condition)>;

/// The conditions of the rules, by operation: those that the driver checks before it reads its
/// state, and all others.
static CHECKS: LazyLock<Vec<(Checks, Checks)>> = LazyLock::new(|| {
    let of = |rules: &Vec<&'static Rule>| {
        let conditions =
            |&rule: &&'static Rule| rule.conditions.iter().map(move |&condition| (rule, condition));
        let checks = rules.iter().flat_map(conditions);
        checks.partition(|(_, condition)| matches!(condition, Condition::Early(_)))
    };
    RULES.iter().map(of).collect()
});

/// The [`CHECKS`] of submissions of work: those without the rules of signals, reservations and
/// commands to engines, which are two thirds.
static OF_WORK: LazyLock<(Checks, Checks)> = LazyLock::new(|| {
    let (early, late) = &CHECKS[Operation::Submit as usize];
    let of_work = |checks: &Checks| {
        let checks = checks.iter().filter(|(rule, _)| rule.request.is_none());
        checks.copied().collect()
    };
    (of_work(early), of_work(late))
});

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

    use gaudi_spec::gaudi2::ASIC;
    use gaudi_uapi::cs::{CsFlags, HlCsChunk};

    use super::*;
    use crate::request::CsRequest;

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
    fn a_rule_of_another_kind_of_submission_is_not_broken_by_one_of_work() {
        let chunk = [HlCsChunk::default(); 2];
        for (execute, flags) in [
            (&chunk[..], CsFlags::NONE),
            (&chunk[..1], CsFlags::TIMESTAMP),
            (&[], CsFlags::NONE),
        ] {
            let request = CsRequest {
                execute,
                flags,
                ..CsRequest::default()
            };
            let others = Rule::checks(Operation::Submit).filter(|(rule, _)| rule.request.is_some());
            for (rule, condition) in others {
                let (Condition::Early(broken) | Condition::Late(broken)) = condition else {
                    panic!("{} asks for the state: check it here too", rule.id);
                };
                assert_eq!(broken(AnyRequest::Submit(&&request), &ASIC), None, "{}", rule.id);
            }
        }
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
