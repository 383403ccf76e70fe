//! `--trace`, `--fault` and `--seed`: the layers that stand around every device of a command.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use gaudi::layers::Stack;
use gaudi::layers::fault::{Filter, PlanSource, Rule, Target, load_plan, tally};
use gaudi::{BackendSpec, DeviceSpec, Error, ErrorKind, LayerSpec};

use crate::common::Common;
use crate::exit::Usage;

const FAULT: &str = "fault";
const TRACE: &str = "trace";

/// Returns the spec with the command line's layers around it. Faults are inside, so that the trace
/// has them.
///
/// # Errors
/// An invalid plan or file is a usage error, reported before devices are searched.
pub(crate) fn around(common: &Common, mut spec: DeviceSpec) -> Result<DeviceSpec> {
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
        spec.layers.push(layer(FAULT, fault(plan, common.seed)?));
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

/// Returns the argument of `--fault` in the form of a layer.
fn fault(argument: &str, seed: Option<u64>) -> Result<String> {
    let loaded = load_plan(argument, seed.unwrap_or(0));
    let (plan, source) = loaded.map_err(|error| usage("--fault".to_owned(), error))?;
    if plan.rules.is_empty() {
        return Err(Usage(format!("--fault: the plan {argument:?} has no rule")).into());
    }
    Ok(match (seed, source) {
        (None, PlanSource::Argument | PlanSource::File) => argument.to_owned(),
        // The text of a pipe can be read only once, and a seed is part of the text.
        _ => plan.to_string(),
    })
}

/// Warns of each fault rule that injected nothing: such a run has tested nothing.
///
/// `node` names the process if a command has two.
pub(crate) fn report_unfired(node: Option<&str>) {
    let node = node.map_or_else(String::new, |node| format!("{node}: "));
    for count in tally().into_iter().filter(|count| count.fired == 0) {
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
            fault(plan, Some(9)).unwrap(),
            "submit:error=EIO:p=5:seed=9;wait_cs:when=2:reset;*:delay=1ms:p=1:seed=3"
        );
        assert_eq!(
            fault("submit:p=5:lose", None).unwrap(),
            "submit:p=5:lose",
            "none given"
        );
    }

    #[test]
    fn seed_reaches_plan_in_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# half of them\nsubmit:p=50:lose\n").unwrap();
        let name = file.path().to_str().unwrap();
        assert_eq!(fault(name, Some(1)).unwrap(), "submit:lose:p=50:seed=1");
        assert_eq!(fault(name, None).unwrap(), name, "errors name the file");
    }
}
