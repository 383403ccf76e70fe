//! `--trace`, `--fault` and `--seed`: the layers that stand around every device of a command.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use gaudi_hal::layers::Stack;
use gaudi_hal::layers::fault::{PlanSource, Target, read_plan, tally};
use gaudi_seam::{BackendSpec, DeviceSpec, ErrorKind, LayerSpec};

use crate::common::Common;
use crate::exit::Usage;

const FAULT: &str = "fault";
const TRACE: &str = "trace";

/// A spec with the command line's layers around it: faults inside, so that the trace shows them.
pub(crate) fn around(common: &Common, mut spec: DeviceSpec) -> Result<DeviceSpec> {
    if let (BackendSpec::Mock(mock), Some(seed)) = (&mut spec.backend, common.seed) {
        mock.seed = seed;
    }
    let mut add = |name: &str, argument: String| {
        spec.layers.push(LayerSpec {
            name: name.to_owned(),
            argument: Some(argument),
        });
    };
    if let Some(plan) = &common.fault {
        add(FAULT, seeded(plan, common.seed)?);
    }
    if let Some(file) = &common.trace {
        let name = file.to_str();
        add(
            TRACE,
            name.context("--trace: the file's name is not UTF-8")?.to_owned(),
        );
    }
    for layer in &spec.layers {
        let whose = match (layer.name.as_str(), &common.fault, &common.trace) {
            (FAULT, Some(_), _) => "--fault".to_owned(),
            (TRACE, _, Some(_)) => "--trace".to_owned(),
            (FAULT | TRACE, ..) => format!("the device {spec}"),
            _ => continue,
        };
        // An invalid plan or file is a usage error, reported before devices are searched.
        Stack::prepare(std::slice::from_ref(layer)).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => anyhow::Error::from(error).context(Usage(whose)),
            _ => error.into(),
        })?;
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

/// A plan whose rules of chance have a seed each where there is one to add: a rule's seed is part
/// of its text.
fn seeded(argument: &str, seed: Option<u64>) -> Result<String> {
    let plan = read_plan(argument).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => anyhow::Error::from(error).context(Usage("--fault".to_owned())),
        _ => error.into(),
    })?;
    let text = plan.text;
    if text.split(['\n', ';']).all(|rule| {
        let rule = rule.split('#').next().unwrap_or_default();
        rule.trim().is_empty()
    }) {
        return Err(Usage(format!("--fault: the plan {argument:?} has no rule")).into());
    }
    let Some(seed) = seed else {
        // A pipe gives its text once: what was read is the plan. A file is named, so that errors
        // name it.
        return Ok(match plan.source {
            PlanSource::Pipe => text,
            _ => argument.to_owned(),
        });
    };
    let rules = text.split(['\n', ';']).map(|rule| {
        let (rule, comment) = rule
            .split_once('#')
            .map_or((rule, None), |(rule, rest)| (rule, Some(rest)));
        let parts = || rule.split(':').map(str::trim);
        let rule =
            if parts().any(|part| part.starts_with("p=")) && !parts().any(|part| part.starts_with("seed=")) {
                format!("{}:seed={seed}", rule.trim_end())
            } else {
                rule.to_owned()
            };
        comment.map_or(rule.clone(), |comment| format!("{rule}#{comment}"))
    });
    Ok(rules.collect::<Vec<_>>().join("\n"))
}

/// Warns of each fault rule that injected nothing: such a run has tested nothing.
///
/// `node` names the process if a command has two.
pub(crate) fn report_unfired(node: Option<&str>) {
    let node = node.map_or_else(String::new, |node| format!("{node}: "));
    for count in tally().into_iter().filter(|count| count.fired == 0) {
        let seen = match (count.rule.target, count.seen) {
            (Target::Any, 0) => "no operation was called".to_owned(),
            (Target::Only(only), 0) => format!("{only} was not called"),
            (Target::Any, 1) => "1 operation was called".to_owned(),
            (Target::Any, seen) => format!("{seen} operations were called"),
            (Target::Only(only), 1) => format!("{only} was called once"),
            (Target::Only(only), seen) => format!("{only} was called {seen} times"),
        };
        // A closed standard error is not an error of this program.
        let _ = writeln!(
            std::io::stderr(),
            "warning: {node}the fault rule {} never fired: {seen}",
            count.rule
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_goes_to_rules_with_chance() {
        assert_eq!(
            seeded(
                "submit:p=5:error=EIO; wait:when=2:reset\n*:p=1:seed=3:delay=1ms",
                Some(9)
            )
            .unwrap(),
            "submit:p=5:error=EIO:seed=9\n wait:when=2:reset\n*:p=1:seed=3:delay=1ms"
        );
        assert_eq!(
            seeded("submit:p=5:lose", None).unwrap(),
            "submit:p=5:lose",
            "none given"
        );
    }

    #[test]
    fn seed_reaches_plan_in_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# half of them\nsubmit:p=50:lose\n").unwrap();
        assert_eq!(
            seeded(file.path().to_str().unwrap(), Some(1)).unwrap(),
            "# half of them\nsubmit:p=50:lose:seed=1\n"
        );
    }
}
