//! `--trace`, `--fault` and `--seed`: the layers that stand around every device of a command.

use anyhow::{Context as _, Result};
use gaudi_hal::layers::Stack;
use gaudi_seam::{BackendSpec, DeviceSpec, ErrorKind, LayerSpec};

use crate::args::Common;
use crate::exit::Usage;

const FAULT: &str = "fault";

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
            "trace",
            name.context("--trace: the file's name is not UTF-8")?.to_owned(),
        );
    }
    for layer in spec.layers.iter().filter(|layer| layer.name == FAULT) {
        let whose = match &common.fault {
            Some(_) => "--fault".to_owned(),
            None => format!("the device {spec}"),
        };
        // A plan that says nothing is the command line's fault, and is told before a device is looked for.
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

/// A plan whose rules of chance have a seed each where there is one to add: a rule's seed is part of its text.
fn seeded(plan: &str, seed: Option<u64>) -> Result<String> {
    let read = || std::fs::read_to_string(plan).with_context(|| format!("cannot read the fault plan {plan}"));
    let (text, once) = match std::fs::metadata(plan) {
        Ok(there) => (read()?, !there.is_file()),
        Err(_) => (plan.to_owned(), false),
    };
    if text.split(['\n', ';']).all(|rule| {
        let rule = rule.split('#').next().unwrap_or_default();
        rule.trim().is_empty()
    }) {
        return Err(Usage(format!("--fault: the plan {plan:?} has no rule")).into());
    }
    let Some(seed) = seed else {
        // A pipe gives its text once: what was read is the plan. A file is named, so that errors name it.
        return Ok(if once { text } else { plan.to_owned() });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_goes_to_the_rules_that_have_a_chance_and_none() {
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
    fn a_seed_reaches_a_plan_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# half of them\nsubmit:p=50:lose\n").unwrap();
        assert_eq!(
            seeded(file.path().to_str().unwrap(), Some(1)).unwrap(),
            "# half of them\nsubmit:p=50:lose:seed=1\n"
        );
    }
}
