//! Parsers of text.

use gaudi_dmabuf::reach::{Config, Importer, Manifest, Recorder, Topology};
use gaudi_hal::MappingTable;
use gaudi_layers::trace::Reader;
use gaudi_seam::DeviceSpec;
use gaudi_seam::fault::Plan;

pub(crate) fn device_spec(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<DeviceSpec>() {
        Ok(spec) => {
            let printed = spec.to_string();
            assert_eq!(printed.parse(), Ok(spec), "{printed:?} parses back");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn fault_plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<Plan>() {
        Ok(plan) => {
            let printed = plan.to_string();
            assert_eq!(printed.parse(), Ok(plan), "{printed:?} parses back");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn mapping_table(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(table) = MappingTable::parse(text) {
        let again = MappingTable::new(table.entries().to_vec());
        assert!(again.is_ok_and(|again| again.entries() == table.entries()));
    }
}

pub(crate) fn sysfs(bytes: &[u8]) {
    // The bytes are a configuration space too.
    let config = Config::parse(bytes, bytes.len() as u64);
    assert!(!format!("{config:?}").is_empty());
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(tree) = text.parse::<Manifest>() else {
        return;
    };
    let printed = tree.to_string();
    assert_eq!(printed.parse(), Ok(tree.clone()), "a tree parses back");
    let recorder = Recorder::new(&tree);
    let topology = Topology::read(&recorder);
    for exporter in topology.functions.keys().take(8) {
        for importer in topology.importers.iter().take(8) {
            judge(&topology, *exporter, importer);
        }
        assert!(topology.ranking(*exporter).len() <= topology.importers.len());
    }
    // What was read is enough to read it again.
    let again = Topology::read(&recorder.manifest());
    assert_eq!(again.functions.len(), topology.functions.len());
}

fn judge(topology: &Topology, exporter: gaudi_seam::PciAddress, importer: &Importer) {
    let reach = topology.reach(exporter, importer);
    if let Some(route) = reach.route() {
        // Only that it returns: a route may have no caveat.
        let _ = topology.caveat(route, importer);
    }
}

pub(crate) fn trace(bytes: &[u8]) {
    for record in Reader::new(bytes).flatten() {
        let line = record.to_line();
        assert_eq!(
            gaudi_layers::trace::Record::parse(line.trim_ascii_end()).ok(),
            Some(record),
            "a record parses back"
        );
    }
}
