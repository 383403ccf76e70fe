//! Which NIC for which accelerator.

use gaudi_dmabuf::reach::{Importer, Reach, Topology};
use gaudi_seam::PciAddress;

/// One RDMA device, and whether it reaches an accelerator's memory.
#[derive(Debug, Clone)]
pub struct NicChoice {
    /// As `ibv_get_device_name` gives it.
    pub name: String,
    /// The kernel's answer; `Unknown` where the device is not in the tree.
    pub reach: Reach,
}

/// Orders RDMA devices for an accelerator: those that reach its memory first, best route first ([`Topology::ranking`]); then those of
/// which it is not known; then those that the kernel refuses, which can only stage.
pub fn rank(topology: &Topology, accelerator: PciAddress, names: &[&str]) -> Vec<NicChoice> {
    let ranking = topology.ranking(accelerator);
    let owner = |name: &str| -> Option<&Importer> {
        topology
            .importers
            .iter()
            .find(|importer| importer.rdma.iter().any(|known| known == name))
    };
    let mut choices: Vec<(usize, NicChoice)> = names
        .iter()
        .map(|&name| {
            let importer = owner(name);
            let place = ranking
                .iter()
                .position(|choice| importer.is_some_and(|importer| importer == choice.importer));
            let reach = importer.map_or_else(
                || Reach::Unknown(vec![format!("the place of {name}")]),
                |importer| topology.reach(accelerator, importer),
            );
            let class = match (&reach, place) {
                (Reach::Reachable(_), Some(place)) => place,
                (Reach::Reachable(_), None) => ranking.len(),
                (Reach::Unknown(_), _) => ranking.len() + 1,
                (Reach::Refused(_), _) => ranking.len() + 2,
            };
            (
                class,
                NicChoice {
                    name: name.to_owned(),
                    reach,
                },
            )
        })
        .collect();
    choices.sort_by_key(|(class, _)| *class);
    choices.into_iter().map(|(_, choice)| choice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_dmabuf::reach::Manifest;

    const EXAMPLE: &str = include_str!("../../../dmabuf/tests/reach/fixtures/hls2.tree");

    #[test]
    fn the_nic_of_the_same_switch_comes_first_and_an_unknown_one_last() {
        let tree: Manifest = EXAMPLE.parse().unwrap();
        let topology = Topology::read(&tree);
        let card = topology.accelerators().next().unwrap().address;
        let names: Vec<&str> = topology
            .importers
            .iter()
            .flat_map(|importer| importer.rdma.iter().map(String::as_str))
            .rev()
            .chain(["nowhere0"])
            .collect();
        let ranked = rank(&topology, card, &names);
        assert_eq!(ranked.len(), names.len(), "none is lost");
        let best = topology.ranking(card)[0].importer.name();
        assert_eq!(ranked[0].name, best, "{ranked:?}");
        let unknown = ranked
            .iter()
            .position(|choice| choice.name == "nowhere0")
            .unwrap();
        let reachable = ranked
            .iter()
            .rposition(|choice| choice.reach.route().is_some())
            .unwrap();
        assert!(unknown > reachable, "{ranked:?}");
    }
}
