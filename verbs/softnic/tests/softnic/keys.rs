//! The keys of regions and windows are capabilities: one key must not lead to another.

use std::collections::HashSet;

use gaudi_softnic::SoftNic;
use gaudi_verbs::provider::MwType;

use crate::node::*;

/// Every distance between keys that follow each other is another one: a peer that holds a key
/// cannot compute the next. Of 128 random distances two are equal once in half a million runs.
fn have_no_common_distance(keys: &[u32]) {
    let distances: HashSet<u32> = keys
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    assert_eq!(
        distances.len(),
        keys.len() - 1,
        "a distance occurs twice: {keys:x?}"
    );
}

#[test]
fn region_keys_are_unpredictable() {
    let (a, _b) = pair();
    let regions: Vec<_> = (0..129)
        .map(|_| a.pd.reg_mapping(a.host.clone(), FULL).unwrap())
        .collect();
    let keys: Vec<u32> = regions.iter().map(|mr| mr.rkey().0).collect();
    have_no_common_distance(&keys);
}

#[test]
fn window_keys_are_unpredictable() {
    let (a, _b) = pair();
    let windows: Vec<_> = (0..129).map(|_| a.pd.alloc_mw(MwType::Type2).unwrap()).collect();
    let keys: Vec<u32> = windows.iter().map(|mw| mw.rkey().0).collect();
    have_no_common_distance(&keys);
}

#[test]
fn released_region_key_is_not_reused() {
    let (a, _b) = pair();
    let mut seen = HashSet::new();
    for _ in 0..64 {
        let mr = a.pd.reg_mapping(a.host.clone(), FULL).unwrap();
        assert!(seen.insert(mr.rkey().0), "a key came back");
        mr.close().unwrap();
    }
}

#[test]
fn two_nics_share_no_keys() {
    let keys = |nic| -> HashSet<u32> {
        let node = Node::new(nic);
        let regions: Vec<_> = (0..16)
            .map(|_| node.pd.reg_mapping(node.host.clone(), FULL).unwrap())
            .collect();
        regions.iter().map(|mr| mr.rkey().0).collect()
    };
    let (a, b) = SoftNic::pair(gaudi_softnic::SoftNicConfig::default()).unwrap();
    assert!(keys(a).is_disjoint(&keys(b)));
}
