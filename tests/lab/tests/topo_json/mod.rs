//! What `gaudi topo` reports: which NIC reaches which exporter.

use gaudi_lab::stdout_of;
use serde_json::Value;

/// The answer for an exporter and the NIC that has this RDMA device.
pub(crate) fn topo(exporter: &str, rdma: &str) -> Value {
    let stdout = stdout_of(&["gaudi", "topo", "--json", "--exporter", exporter]);
    let document: Value = serde_json::from_str(&stdout).expect("one JSON document");
    let rows = |key: &str| document[key].as_array().expect("a list").clone();
    let has = |nic: &Value| {
        nic["rdma"]
            .as_array()
            .is_some_and(|names| names.iter().any(|name| name == rdma))
    };
    let nics = rows("nics");
    let nic = nics
        .iter()
        .find(|nic| has(nic))
        .unwrap_or_else(|| panic!("{rdma} is on a NIC of {nics:?}"));
    rows("reach")
        .into_iter()
        .find(|row| row["exporter"] == exporter && row["nic"] == nic["name"])
        .unwrap_or_else(|| panic!("there is an answer for {exporter} and {nic}"))
}
