//! The cards that the plugin offers to UCX, one memory domain each.

use std::sync::{Mutex, OnceLock};

use gaudi_copy::{DeviceId, MemoryDomain, Transport};
use gaudi_hal::{Environment, choose, list, list_visible};
use gaudi_seam::{BackendSpec, DeviceSpec, PciAddress, Result};

/// One card.
pub(crate) struct Card {
    index: usize,
    spec: DeviceSpec,
    /// Made at its first use, because a domain belongs to one process: a program that loads the
    /// plugin may fork first.
    memory: OnceLock<MemoryDomain>,
    /// Made by the first copy.
    pub(crate) transport: Mutex<Option<Transport>>,
    /// Its PCI function, where sysfs has it.
    pub(crate) bus: Option<PciAddress>,
    /// The number of the open card in the library's map, once it has memory.
    pub(crate) id: OnceLock<DeviceId>,
    /// UCX's number of that function, once UCX has one.
    pub(crate) system_device: OnceLock<u8>,
    /// The name of its memory domain.
    pub(crate) domain: String,
    /// The name of its device resource.
    pub(crate) device: String,
}

/// The component's name, and the memory domain's where there is one card.
pub(crate) const COMPONENT: &str = "gaudi_copy";

static CARDS: OnceLock<Vec<Card>> = OnceLock::new();

/// The cards, after [`find`].
pub(crate) fn cards() -> &'static [Card] {
    CARDS.get().map_or(&[], Vec::as_slice)
}

/// Finds the cards of the environment without opening a node: that of `GAUDI_DEVICE`, those of
/// `GAUDI_MAPPING_TABLE`, or all of the machine. The last two as `HABANA_VISIBLE_DEVICES` and
/// `HABANA_VISIBLE_MODULES` show them.
///
/// # Errors
/// `InvalidInput`: a variable is invalid.
pub(crate) fn find() -> Result<&'static [Card]> {
    if let Some(cards) = CARDS.get() {
        return Ok(cards);
    }
    let cards = of(specs(&Environment::of_process())?);
    Ok(CARDS.get_or_init(|| cards))
}

/// Sets the cards of a test. The first call of the process decides.
#[cfg(test)]
pub(crate) fn set(specs: &[&str]) -> &'static [Card] {
    let found = |text: &&str| (text.parse().expect("a spec"), None);
    CARDS.get_or_init(|| of(specs.iter().map(found).collect()))
}

fn of(found: Vec<Found>) -> Vec<Card> {
    let several = found.len() > 1;
    let card = |(index, (spec, bus)): (usize, Found)| Card {
        index,
        spec,
        memory: OnceLock::new(),
        transport: Mutex::new(None),
        bus,
        id: OnceLock::new(),
        system_device: OnceLock::new(),
        domain: match several {
            true => format!("{COMPONENT}{index}"),
            false => COMPONENT.to_owned(),
        },
        device: format!("gaudi{index}"),
    };
    found.into_iter().enumerate().map(card).collect()
}

type Found = (DeviceSpec, Option<PciAddress>);

fn specs(environment: &Environment) -> Result<Vec<Found>> {
    if environment.device.is_some() {
        let spec = choose(None, environment)?;
        let listed = list();
        let bus = listed.iter().find(|card| card.spec.backend == spec.backend);
        let bus = bus.and_then(|card| card.bus);
        return Ok(vec![(spec, bus)]);
    }
    if let Some(entries) = environment.visible_entries()? {
        let row = |entry: &gaudi_hal::MappingEntry| {
            (DeviceSpec::bare(BackendSpec::Map(entry.index)), Some(entry.bus))
        };
        return Ok(entries.iter().map(row).collect());
    }
    Ok(list_visible(environment)?
        .into_iter()
        .map(|card| (card.spec, card.bus))
        .collect())
}

impl Card {
    /// Its place among [`cards`].
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Whether the compute node is open.
    pub(crate) fn is_open(&self) -> bool {
        self.opened().is_some_and(MemoryDomain::is_open)
    }

    /// The memory domain, if there was an allocation.
    pub(crate) fn opened(&self) -> Option<&MemoryDomain> {
        self.memory.get()
    }

    /// The memory domain, which opens the compute node at its first allocation or copy.
    ///
    /// # Errors
    /// `InvalidInput`: a variable of the domain is invalid.
    pub(crate) fn memory(&self) -> Result<&MemoryDomain> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let memory = MemoryDomain::new(&self.spec)?;
        Ok(self.memory.get_or_init(|| memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(device: Option<&str>, table: Option<&str>) -> Result<Vec<Found>> {
        specs(&Environment {
            device: device.map(Into::into),
            mapping_table: table.map(Into::into),
            ..Environment::default()
        })
    }

    #[test]
    fn explicit_device_is_the_only_card() {
        let cards = found(Some("mock:gaudi2?name=only"), None).expect("a valid spec");
        assert_eq!(cards.len(), 1, "{cards:?}");
        assert_eq!(cards[0].0.to_string(), "mock:gaudi2?name=only");
    }

    #[test]
    fn invalid_device_is_an_error() {
        let error = found(Some("mock:nothing"), None).expect_err("not a chip");
        assert!(
            error.to_string().contains("GAUDI_DEVICE"),
            "the variable is named: {error}"
        );
    }

    #[test]
    fn mapping_table_lists_every_card() {
        let table = r#"[{"index":5,"module_id":1,"bus_id":"0000:19:00.0"},{"index":4,"module_id":2,"bus_id":"0000:1a:00.0"}]"#;
        let cards = found(None, Some(table)).expect("a valid table");
        assert_eq!(cards.len(), 2, "{cards:?}");
        assert!(cards.iter().all(|(_, bus)| bus.is_some()), "addresses are known");
    }
}
