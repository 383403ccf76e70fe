//! `--trace`, `--fault` and `--seed`: the layers that stand around every device of a command.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use gaudi::layers::Stack;
use gaudi::layers::fault::{Filter, Plan, PlanSource, Rule, Target, load_plan, tally};
use gaudi::{BackendSpec, DeviceSpec, Error, ErrorKind, LayerSpec};

use crate::common::Common;
use crate::exit::Usage;

const FAULT: &str = "fault";
const TRACE: &str = "trace";

/// Returns the spec with the command line's layers around it. Faults are inside, so that the trace
/// has them.
///
/// # Errors
/// An invalid plan or file is a usage error, reported before devices are searched; so is a rule for
/// a NIC, because the command opens no software NIC.
pub(crate) fn around(common: &Common, spec: DeviceSpec) -> Result<DeviceSpec> {
    if let Some(rule) = nic_rules(common)?.first() {
        return Err(Usage(format!(
            "--fault: {rule} is for a software NIC, and this command opens none: try gaudi demo"
        ))
        .into());
    }
    around_beside_nic(common, spec)
}

/// As [`around`], for a command that opens a software NIC too: [`nic_rules`] returns the rules for
/// the NIC.
pub(crate) fn around_beside_nic(common: &Common, mut spec: DeviceSpec) -> Result<DeviceSpec> {
    if let (BackendSpec::Mock(mock), Some(seed)) = (&mut spec.backend, common.seed) {
        mock.seed = seed;
    }
    for layer in &spec.layers {
        if [FAULT, TRACE].contains(&layer.name.as_str()) {
            check(layer).map_err(|error| usage(format!("the device {spec}"), error))?;
        }
    }
    let layer = |name: &str, argument: String| LayerSpec {
        name: name.to_owned(),
        argument: Some(argument),
    };
    if let Some(plan) = &common.fault {
        if let Some(plan) = fault(plan, common.seed)? {
            spec.layers.push(layer(FAULT, plan));
        }
    }
    if let Some(file) = &common.trace {
        let name = file.to_str().context("--trace: the file's name is not UTF-8")?;
        let layer = layer(TRACE, name.to_owned());
        check(&layer).map_err(|error| usage("--trace".to_owned(), error))?;
        spec.layers.push(layer);
    }
    let real = !matches!(spec.backend, BackendSpec::Mock(_) | BackendSpec::Replay(_));
    if real && !common.on_hardware && spec.layers.iter().any(|layer| layer.name == FAULT) {
        return Err(Usage(format!(
            "faults on a real device ({}) may end in a reset: add --on-hardware, or use -d mock:gaudi2",
            DeviceSpec::bare(spec.backend)
        ))
        .into());
    }
    Ok(spec)
}

fn check(layer: &LayerSpec) -> Result<(), Error> {
    Stack::prepare(std::slice::from_ref(layer)).map(drop)
}

/// Returns the error of an argument of `whose`.
fn usage(whose: String, error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::InvalidInput => anyhow::Error::from(error).context(Usage(whose)),
        _ => error.into(),
    }
}

/// Loads the plan of `--fault`.
fn load(argument: &str, seed: Option<u64>) -> Result<(Plan, PlanSource)> {
    let loaded = load_plan(argument, seed.unwrap_or(0));
    let (plan, source) = loaded.map_err(|error| usage("--fault".to_owned(), error))?;
    if plan.rules.is_empty() {
        return Err(Usage(format!("--fault: the plan {argument:?} has no rule")).into());
    }
    Ok((plan, source))
}

/// Returns the rules of `--fault` for events of a NIC.
///
/// # Errors
/// An invalid plan is a usage error.
pub(crate) fn nic_rules(common: &Common) -> Result<Vec<Rule>> {
    Ok(match &common.fault {
        Some(argument) => load(argument, common.seed)?.0.of(Target::is_nic).rules,
        None => Vec::new(),
    })
}

/// Returns the options without a `--fault` that only has rules for events of a NIC, and without its
/// `--seed`: a command without a device rejects the others.
///
/// # Errors
/// An invalid plan is a usage error.
pub(crate) fn without_nic_faults(common: &Common) -> Result<Common> {
    let mut rest = common.clone();
    if let Some(argument) = &common.fault {
        if fault(argument, common.seed)?.is_none() {
            (rest.fault, rest.seed) = (None, None);
        }
    }
    Ok(rest)
}

/// Returns the argument of `--fault` in the form of a layer, without its rules for events of a NIC.
/// `None` if no other is left.
fn fault(argument: &str, seed: Option<u64>) -> Result<Option<String>> {
    let (plan, source) = load(argument, seed)?;
    let of_device = plan.of(|target| !target.is_nic());
    if of_device.rules.is_empty() {
        return Ok(None);
    }
    let is_whole = of_device.rules.len() == plan.rules.len();
    Ok(Some(match (seed, source) {
        (None, PlanSource::Argument | PlanSource::File) if is_whole => argument.to_owned(),
        // The text of a pipe can be read only once, and a seed is part of the text.
        _ => of_device.to_string(),
    }))
}

/// Warns of each fault rule that injected nothing: such a run has tested nothing.
///
/// `node` names the process if a command has two.
pub(crate) fn report_unfired(node: Option<&str>) {
    let node = node.map_or_else(String::new, |node| format!("{node}: "));
    let counts = tally().into_iter().chain(crate::nic::fault_counts());
    for count in counts.filter(|count| count.fired == 0) {
        let seen = match (count.rule.target, count.seen) {
            (Target::Any, 0) => "no operation was called".to_owned(),
            (Target::Any, 1) => "1 operation was called".to_owned(),
            (Target::Any, seen) => format!("{seen} operations were called"),
            (Target::Only(only), 0) if is_narrow(&count.rule) => format!("no {only} matched"),
            (Target::Only(only), 0) => format!("{only} was not called"),
            (Target::Only(only), 1) => format!("{only} was called once"),
            (Target::Only(only), seen) => format!("{only} was called {seen} times"),
            (event, 0) => format!("no {event} matched"),
            (event, seen) => format!("{event} matched {seen} times"),
        };
        // A closed standard error is not an error of this program.
        let _ = writeln!(
            std::io::stderr(),
            "warning: {node}the fault rule {} never fired: {seen}",
            count.rule
        );
    }
}

/// Whether a rule does not match every call of its operation.
fn is_narrow(rule: &Rule) -> bool {
    rule.filter != Filter::NONE || rule.schedule.state.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_applies_to_rules_with_chance() {
        let plan = "submit:p=5:error=EIO; wait_cs:when=2:reset\n*:p=1:seed=3:delay=1ms";
        assert_eq!(
            fault(plan, Some(9)).unwrap().unwrap(),
            "submit:error=EIO:p=5:seed=9;wait_cs:when=2:reset;*:delay=1ms:p=1:seed=3"
        );
        assert_eq!(
            fault("submit:p=5:lose", None).unwrap().unwrap(),
            "submit:p=5:lose",
            "none given"
        );
    }

    #[test]
    fn seed_reaches_plan_in_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# half of them\nsubmit:p=50:lose\n").unwrap();
        let name = file.path().to_str().unwrap();
        let half = fault(name, Some(1)).unwrap();
        assert_eq!(half.as_deref(), Some("submit:lose:p=50:seed=1"));
        assert_eq!(
            fault(name, None).unwrap().as_deref(),
            Some(name),
            "errors name the file"
        );
        let mixed = fault("submit:lose;nic.packet:lose", None).unwrap();
        assert_eq!(mixed.as_deref(), Some("submit:lose"));
        assert_eq!(fault("nic.packet:lose", None).unwrap(), None);
    }
}
