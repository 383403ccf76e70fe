//! Plans and operations from words: random ones, or those that proptest shrinks. Smaller words make
//! simpler faults.

use std::time::Duration;

use gaudi_seam::fault::{NicEvent, NicStatus, Plan, Resource, Rule, Schedule, State, Target, Verdict};
use gaudi_seam::{Errno, Operation};

/// Words that make one rule.
pub(crate) const RULE: usize = 6;

/// Returns the item of a list that a word chooses: the first for 0.
pub(crate) fn pick<T: Copy>(of: &[T], word: u16) -> T {
    of[(usize::from(word) * of.len()) >> 16]
}

/// The operations and the verdicts of random rules; frequent ones are listed more than once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vocabulary {
    pub(crate) operations: &'static [Operation],
    pub(crate) verdicts: &'static [Verdict],
}

impl Vocabulary {
    /// Of code that copies.
    pub(crate) const IN_MEMORY: Self = Self {
        operations: OPERATIONS,
        verdicts: VERDICTS,
    };

    /// Of code that also exports device memory.
    pub(crate) const WITH_DESCRIPTORS: Self = Self {
        operations: EXPORTING,
        verdicts: &join::<{ VERDICTS.len() + 1 }>(VERDICTS, Verdict::Full(Resource::Fds)),
    };
}

const fn join<const N: usize>(verdicts: &[Verdict], last: Verdict) -> [Verdict; N] {
    let mut all = [last; N];
    let mut at = 0;
    while at < verdicts.len() {
        all[at] = verdicts[at];
        at += 1;
    }
    all
}

const EXPORTING: &[Operation] = &{
    let mut all = [Operation::ExportDmabuf; OPERATIONS.len() + 3];
    let mut at = 0;
    while at < OPERATIONS.len() {
        all[at] = OPERATIONS[at];
        at += 1;
    }
    all
};

/// The operations of the larger vocabulary.
const MOST_OPERATIONS: usize = EXPORTING.len();

const OPERATIONS: &[Operation] = &[
    Operation::Submit,
    Operation::WaitCs,
    Operation::MemMapHost,
    Operation::MemAlloc,
    Operation::Submit,
    Operation::WaitCs,
    Operation::MemMapDevice,
    Operation::MemUnmap,
    Operation::CbCreate,
    Operation::MemFree,
    Operation::CbInfo,
    Operation::Mmap,
    Operation::CbDestroy,
    Operation::Info,
];

/// Errnos of the driver's refusals, and some that the driver never returns.
const ERRNOS: &[Errno] = &[
    Errno::EIO,
    Errno::ENOMEM,
    Errno::EINVAL,
    Errno::EBUSY,
    Errno::ETIMEDOUT,
    Errno::ENODEV,
    Errno::EAGAIN,
    Errno::EINTR,
    Errno::EPERM,
    Errno::EFAULT,
    Errno::ENOTTY,
    Errno::EMFILE,
    Errno::ENOSPC,
];

/// Verdicts of operations, the simplest first.
const VERDICTS: &[Verdict] = &[
    Verdict::Error(Errno::EIO),
    Verdict::Error(Errno::EIO),
    Verdict::Error(Errno::EIO),
    Verdict::Error(Errno::EIO),
    Verdict::Lose,
    Verdict::Lose,
    Verdict::Timeout,
    Verdict::Eintr,
    Verdict::Full(Resource::Queue),
    Verdict::Full(Resource::Memory),
    Verdict::Full(Resource::Space),
    Verdict::Delay(Duration::from_millis(1)),
    Verdict::Ecc,
    Verdict::ComputeReset,
    Verdict::Reset,
    Verdict::FatalEcc,
    Verdict::Razwi,
    Verdict::Heartbeat,
    Verdict::Remove,
];

/// The rule of some words.
pub(crate) fn rule(words: [u16; RULE], of: Vocabulary) -> Rule {
    let [verdict, operation, value, first, schedule, more] = words;
    let verdict = match pick(of.verdicts, verdict) {
        Verdict::Error(_) => Verdict::Error(pick(ERRNOS, value)),
        Verdict::Delay(_) => Verdict::Delay(Duration::from_millis(1 << (value >> 12))),
        other => other,
    };
    let mut met = [Operation::Submit; MOST_OPERATIONS];
    let mut count = 0;
    for &operation in of.operations {
        if verdict.meets(Target::Only(operation)).is_ok() {
            met[count] = operation;
            count += 1;
        }
    }
    // Every verdict above meets one of the operations.
    let target = Target::Only(pick(&met[..count], operation));
    // Half of the rules meet the first match, which nearly every run has; the others one of the
    // next eight.
    let first = match first.checked_sub(1 << 15) {
        None => 1,
        Some(later) => 2 + u64::from(later >> 12),
    };
    // The library retries after these. If they never stopped, a call without a deadline would not
    // return.
    let is_repeated = matches!(
        verdict,
        Verdict::Error(Errno::EAGAIN | Errno::EINTR) | Verdict::Full(Resource::Queue)
    ) || matches!(verdict, Verdict::Timeout | Verdict::Eintr);
    let schedule = match schedule >> 13 {
        0..=3 => Schedule::nth(first),
        4..=5 => Schedule::range(first, first + u64::from(more >> 14), 1),
        _ if is_repeated => Schedule::range(first, first + 2, 1),
        6 => Schedule::range(first, u64::MAX, 1 + u64::from(more >> 14)),
        _ => Schedule::nth(1).during(pick(&[State::Mapped, State::Busy], more)),
    };
    Rule {
        schedule,
        ..Rule::new(target, verdict)
    }
}

/// The events of a NIC and the verdicts on them. Bytes that a NIC changes arrive as if they were
/// right, so no rule inverts a bit.
const NIC: &[(NicEvent, Verdict)] = &[
    (NicEvent::Post, Verdict::Error(Errno::ENOMEM)),
    (NicEvent::Post, Verdict::Full(Resource::Queue)),
    (NicEvent::Post, Verdict::Status(NicStatus::RetryExceeded)),
    (NicEvent::Post, Verdict::QpError),
    (NicEvent::Packet, Verdict::Delay(Duration::from_millis(1))),
    (NicEvent::Packet, Verdict::Lose),
    (NicEvent::Packet, Verdict::Duplicate),
    (NicEvent::Packet, Verdict::Reorder),
    (NicEvent::Packet, Verdict::Damage),
    (NicEvent::Packet, Verdict::Down),
    (NicEvent::Packet, Verdict::QpError),
    (NicEvent::Completion, Verdict::Delay(Duration::from_millis(1))),
    (NicEvent::Completion, Verdict::Lose),
    (NicEvent::Completion, Verdict::Duplicate),
    (NicEvent::Completion, Verdict::Reorder),
    (NicEvent::Region, Verdict::Revoke),
    (NicEvent::State, Verdict::Error(Errno::ENOMEM)),
    (NicEvent::State, Verdict::QpError),
];

const STATUSES: &[NicStatus] = &[
    NicStatus::RetryExceeded,
    NicStatus::LocalProtection,
    NicStatus::RemoteInvalidRequest,
    NicStatus::RemoteAccess,
    NicStatus::RemoteOperation,
    NicStatus::RnrRetryExceeded,
];

/// The rule of some words for an event of a NIC.
pub(crate) fn nic_rule(words: [u16; RULE]) -> Rule {
    let [verdict, _, value, first, _, _] = words;
    let (event, verdict) = match pick(NIC, verdict) {
        (event, Verdict::Status(_)) => (event, Verdict::Status(pick(STATUSES, value))),
        (event, Verdict::Delay(_)) => (event, Verdict::Delay(Duration::from_millis(1 << (value >> 14)))),
        other => other,
    };
    Rule {
        schedule: Schedule::nth(1 + u64::from(first >> 12)),
        ..Rule::new(Target::Nic(event), verdict)
    }
}

/// Makes the rule of some words inject its fault into the first match, in any state.
pub(crate) fn make_certain(words: &mut [u16; RULE]) {
    words[3] = 0;
    words[4] /= 2;
}

/// Makes the rule of some words a certain fault of an export, with verdict number `turn` of those
/// that meet it, in rotation.
pub(crate) fn make_export(words: &mut [u16; RULE], turn: u64) {
    let verdicts = Vocabulary::WITH_DESCRIPTORS.verdicts;
    let meets = |&at: &usize| verdicts[at].meets(Target::Only(Operation::ExportDmabuf)).is_ok();
    let count = (0..verdicts.len()).filter(meets).count().max(1);
    let at = (0..verdicts.len()).filter(meets).nth(turn as usize % count);
    // The first word that chooses this verdict, and one that chooses the last operation.
    words[0] = (at.unwrap_or(0) << 16).div_ceil(verdicts.len()) as u16;
    words[1] = u16::MAX;
    make_certain(words);
}

/// The plan of the rules.
pub(crate) fn plan(rules: impl IntoIterator<Item = [u16; RULE]>, of: Vocabulary) -> Plan {
    Plan {
        rules: rules.into_iter().map(|words| rule(words, of)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use gaudi_sys::random::SplitMix64;

    use super::*;

    #[test]
    fn every_rule_round_trips_as_text() {
        let mut random = SplitMix64::new(7);
        for _ in 0..10_000 {
            let words = [(); RULE].map(|()| random.next() as u16);
            for rule in [rule(words, Vocabulary::WITH_DESCRIPTORS), nic_rule(words)] {
                assert_eq!(rule.to_string().parse(), Ok(rule), "{rule}");
            }
        }
    }

    #[test]
    fn every_verdict_of_exports_has_its_turn() {
        let verdicts = Vocabulary::WITH_DESCRIPTORS.verdicts;
        let target = Target::Only(Operation::ExportDmabuf);
        let turns = (0..verdicts.len() as u64).map(|turn| {
            let mut words = [0x5555; RULE];
            make_export(&mut words, turn);
            let rule = rule(words, Vocabulary::WITH_DESCRIPTORS);
            assert_eq!(rule.target, target, "{rule}");
            rule.verdict.kind().form
        });
        let drawn: std::collections::BTreeSet<_> = turns.collect();
        let wanted = verdicts.iter().filter(|verdict| verdict.meets(target).is_ok());
        let wanted = wanted.map(|verdict| verdict.kind().form);
        assert_eq!(drawn, wanted.collect());
    }

    #[test]
    fn smallest_rule_is_plain() {
        assert_eq!(
            rule([0; RULE], Vocabulary::IN_MEMORY).to_string(),
            "submit:when=1:error=EIO"
        );
    }
}
